//! A torus with any number of dimensions: a ring reduce-scatter in each, of the part that the previous one left, then
//! the ring allgathers in reverse order (BlueConnect: Cho, Finkler, Kung and Hunter, "BlueConnect: decomposing
//! all-reduce for deep learning on heterogeneous network hierarchy", SysML 2019). Best for many ranks: few steps, the
//! minimum number of bytes, and communication only between neighbours of a dimension. The first dimension, usually
//! within a host, reduces the bytes sent in the slower ones.
//!
//! `P = p1 p2 … pk` as given by the caller's `dims`; neighbours in the first dimension have consecutive ranks. Without
//! `dims`, the first dimension is the group (see `torus_2d`) and the others are the prime factors of the number of
//! groups; without groups, the dimensions are the prime factors of `P`.
//!
//! Six ranks, dims 3 x 2: the rings `0 1 2` and `3 4 5` leave a third on each rank, the rings `0 3`, `1 4`, `2 5` a
//! complete sixth; the sixths are returned, then the thirds move around the rings of three.
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
