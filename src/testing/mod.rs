//! What only this crate's own tests and its fuzz targets link: simulation of whole jobs, bodies of fuzz targets, and what several modules'
//! tests share. The tests of a module that look inside it stand beside it.

pub mod fuzz;
#[cfg(all(test, target_os = "linux"))]
pub(crate) mod seccomp;
#[cfg(test)]
mod simulation;
#[cfg(test)]
pub(crate) mod tier;
