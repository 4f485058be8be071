//! [`Floors`] of a crate, as `docs/architecture.md` lists them.

/// The rooms of each floor, from the top down.
#[derive(Debug)]
pub(super) struct Floors(Vec<Vec<String>>);

impl Floors {
    /// Reads the table of `package` in the section "Floors".
    pub(super) fn read(document: &str, package: &str) -> Result<Self, String> {
        let section = document.split_once("\n## Floors\n").ok_or("there is no section \"Floors\"")?.1;
        let section = section.split("\n## ").next().unwrap_or_default();
        let table = section.split("\n### ").find_map(|part| part.strip_prefix(&format!("`{package}`\n")));
        let table = table.ok_or("there is no table of its floors")?;
        let rows = table.lines().filter_map(|line| line.strip_prefix('|')?.split('|').nth(1));
        // The rooms stand between backquotes.
        let rooms = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let floors: Vec<Vec<String>> = rows.map(rooms).filter(|rooms: &Vec<_>| !rooms.is_empty()).collect();
        let mut all: Vec<&String> = floors.iter().flatten().collect();
        all.sort();
        match all.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("the table has the room `{}` twice", pair[0])),
            None => Ok(Self(floors)),
        }
    }

    /// Returns all rooms, each with the number of its floor, from the top down.
    pub(super) fn rooms(&self) -> impl Iterator<Item = (usize, &str)> {
        let floors = self.0.iter().enumerate();
        floors.flat_map(|(floor, rooms)| rooms.iter().map(move |room| (floor + 1, room.as_str())))
    }

    /// Returns the room of a file and its floor. A room may be several files, `a + b`; the longest
    /// matching name wins.
    pub(super) fn of(&self, file: &str) -> Option<(usize, &str)> {
        let stem = file.strip_suffix(".rs").unwrap_or(file);
        let stem = stem.strip_suffix("/mod").unwrap_or(stem);
        let fits = |name: &&str| {
            stem.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let length = |room: &str| room.split(" + ").filter(fits).map(str::len).max();
        let fitting = self.rooms().filter_map(|(floor, room)| Some((length(room)?, (floor, room))));
        fitting.max_by_key(|(length, _)| *length).map(|(_, room)| room)
    }
}
