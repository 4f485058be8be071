//! (3) A set whose every write is conditional on the token loses no element.

use std::collections::HashSet;

use super::check::Limits;
use super::event::Wrote;
use super::request::History;

pub(super) fn lost_elements(history: &History, _: &Limits) -> Vec<String> {
    let mut found = Vec::new();
    for (set, writes) in &history.writes {
        let Some(contents) = history.contents.get(set) else {
            found.push(format!("{set}: its contents were never read"));
            continue;
        };
        let there: HashSet<&str> = contents.iter().map(String::as_str).collect();
        for write in writes {
            let (element, token) = (&write.element, write.token);
            match (write.outcome, there.contains(element.as_str())) {
                (Wrote::Accepted, false) => {
                    found.push(format!("{set}: {element}, written with {token} at {} ns, is lost", write.at));
                }
                (Wrote::Refused, true) => {
                    found.push(format!("{set}: {element} is there, although {token} was too old for it"));
                }
                _ => {}
            }
        }
        if there.len() < contents.len() {
            found.push(format!("{set}: an element is there twice"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::Check::Fencing;
    use super::super::check::tests::found;

    #[test]
    fn an_element_that_is_gone_is_found() {
        let wrote = "0 10 0 wrote accepted 5 x s\n0 20 0 wrote refused 4 y s\n0 30 0 wrote unknown 6 z s\n";
        let with = |contents: &str| {
            found(Fencing, &[("0.0", wrote), ("run", &format!("0 90 0 contents {contents} s"))])
        };
        assert_eq!((with("x"), with("x,z")), (0, 0));
        assert_eq!((with("z"), with("-")), (1, 1), "lost");
        assert_eq!((with("x,y"), with("x,x")), (1, 1), "refused, and twice");
        assert_eq!(found(Fencing, &[("0.0", wrote)]), 1, "the contents were not read");
    }
}
