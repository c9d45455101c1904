//! The torus in any number of dimensions: a ring reduce-scatter in each, of what the one before has left, then the ring
//! allgathers back (BlueConnect: Cho, Finkler, Kung and Hunter, "BlueConnect: decomposing all-reduce for deep learning on
//! heterogeneous network hierarchy", SysML 2019). Best for many ranks: few steps, as few bytes as any, and neighbours only
//! in each dimension; the first dimension, of hosts as a rule, takes most of the bytes off the slower ones.
//!
//! `P = p1 p2 … pk` as the caller's `dims` say; the first dimension's neighbours have consecutive ranks. Without `dims` the first
//! dimension are the groups (`torus_2d` says which, and how they may differ in size), the others the prime factors of
//! their number, or all are the prime factors of `P`.
//!
//! Six ranks, dims 3 x 2: rings of `0 1 2` and `3 4 5` leave a third on each rank, the rings `0 3`, `1 4`, `2 5` a sixth,
//! which is complete; they return it, and the thirds go around the rings of three.
//!
//! Steps: `2 Σ (pi - 1)`. Every rank sends `2 S (P - 1) / P` bytes.

use super::super::grid::Grid;
use super::super::{Algorithm, Case, Shape, Uses};
use super::torus_2d::{over, price};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "torus_nd", generate, cost, uses: Uses::Groups };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    Ok(over(shape, &Grid::deep(shape)))
}

fn cost(case: &Case<'_>) -> Cost {
    price(case, &Grid::deep(case.shape))
}
