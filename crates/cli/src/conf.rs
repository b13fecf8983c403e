//! `corelane conf check`.

use crate::device;
use crate::failure::Failure;
use std::path::Path;

/// Checks a configuration file and says what it asks for.
pub fn check(file: &Path) -> Result<(), Failure> {
    let config = device::read_config(file)?;
    println!("{}: good ({})", file.display(), device::describe(&config));
    Ok(())
}
