//! Allreduce of the buffers of a single process, without a network (Gloo's `allreduce_local`). Six buffers: the first
//! two are reduced into the first output, the third to sixth are reduced into it one after the other, and the result is
//! copied to the other outputs.
//!
//! Steps: 0; nothing is sent.

use super::super::phases::{contribution, fan_out, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::{Error, Result};
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "local", generate, cost, uses: Uses::Sizes };

/// `γS (N - 1)`.
fn cost(case: &Case<'_>) -> Cost {
    if case.shape.size > 1 {
        return Cost { path: f64::INFINITY, ..Cost::default() };
    }
    let reduced = case.bytes() * (case.shape.contributions() - 1) as f64;
    Cost { path: case.network.gamma * reduced, reduced, ..Cost::default() }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    if shape.size != 1 {
        return Err(Error::invalid(format!("allreduce local is for one process, but size is {}", shape.size)));
    }
    let mut b = Builder::new();
    let output = shape.output(0);
    let current = contribution(&mut b, &sources(shape), 0, output.len, output);
    b.copy(current, output);
    b.divide(output, shape.divisor());
    fan_out(&mut b, shape, output);
    Ok(b.build())
}
