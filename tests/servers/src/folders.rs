//! Folders that cargo builds in, found from this program's path.

use std::io;
use std::path::{Path, PathBuf};

/// Returns the folder with the programs that cargo has built, including this one.
///
/// # Errors
///
/// When the path of this program is unknown.
pub fn programs() -> io::Result<PathBuf> {
    let unknown = |why: String| io::Error::other(format!("the folder of this program is unknown: {why}"));
    let exe = std::env::current_exe().map_err(|error| unknown(error.to_string()))?;
    let mut folder = exe.parent();
    // Tests are in `deps`, a subfolder of the other programs' folder.
    if folder.is_some_and(|folder| folder.ends_with("deps")) {
        folder = folder.and_then(Path::parent);
    }
    folder.map(Path::to_owned).ok_or_else(|| unknown(exe.display().to_string()))
}

/// Returns the folder with the tools that xtask installs, since no package manager has them. All
/// build profiles share it.
///
/// # Errors
///
/// As [`programs`].
pub fn tools() -> io::Result<PathBuf> {
    Ok(programs()?.with_file_name("tools"))
}
