//! Groups of `base` ranks, then groups of such groups (Gloo's `allreduce_bcube`, after the BCube network of Guo et al.
//! 2009).
//!
//! The number of ranks is factorised, with factors of at most `base` where possible, and a rank is written as a number
//! with one digit per factor. In each step the ranks that differ in only one digit cut their data into as many parts as
//! the factor, and each sends every other rank its part. The same steps in reverse order distribute the result.
//!
//! Six ranks, base 2: the factors are 2 and 3. Ranks 0 and 1 (2 and 3, 4 and 5) exchange halves; then 0, 2, 4, each
//! with the first half, exchange thirds of it, as do 1, 3, 5 with the second. Each rank now has a complete sixth; then
//! the thirds and the halves are sent back.
//!
//! Steps: `2 log_base P` if `P` is a power of the base; within a step a rank reduces the parts from the other members
//! of its group one after the other, so the dependency chain is `base - 1` for each step of the first half. Every rank
//! sends `2 S (P - 1) / P` bytes. Lower ranks are the left operand, so the operation need not commute.
//!
//! A call with an order has one group of all ranks, whatever its base. In that of ranks a rank reduces the parts from
//! rank 0 on; if it is reproducible, it receives all contributions to its part, and reduces them at once.

use super::super::phases::{apart, combine_apart, combine_from_left, contribution, fan_out, sources};
use super::super::{Algorithm, Case, Order, Shape, Uses};
use crate::error::{Error, Result};
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Side};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "bcube", generate, cost, uses: Uses::Sizes };

/// Factors of `size`: in each step the largest that is at most `base`, else the smallest.
fn factors(mut size: usize, base: usize) -> Vec<usize> {
    let mut factors = Vec::new();
    while size > 1 {
        let small = (2..=base.min(size)).rev().find(|f| size.is_multiple_of(*f));
        let factor =
            small.or_else(|| (2..).take_while(|f| f * f <= size).find(|f| size.is_multiple_of(*f))).unwrap_or(size);
        factors.push(factor);
        size /= factor;
    }
    factors
}

/// The group size of the call.
fn base(shape: &Shape<'_>) -> usize {
    if shape.order == Order::Any { shape.base } else { shape.size }
}

/// Each factor `f` of `P` takes `2 (α + (f - 1) n/(fB)) + (f - 1) γn/f` with `n` bytes left.
fn cost(case: &Case<'_>) -> Cost {
    let gamma = case.network.gamma;
    let (mut bytes, mut stride) = (case.bytes(), 1);
    let mut cost = Cost { reduced: (case.ranks() - 1.0) * bytes, ..Cost::default() };
    for factor in factors(case.shape.size, base(case.shape).max(2)) {
        let (others, part) = ((factor - 1) as f64, bytes / factor as f64);
        let link = case.link(stride * (factor - 1));
        // The first rank of a group starts to reduce only when the last part begins to arrive.
        let reductions = gamma * (case.segment(part) + (others - 1.0) * part);
        cost.path += 2.0 * case.outside(link, others * part, part, others * case.pieces(part), true) + reductions;
        cost.messages += 2.0 * case.ranks() * others * case.pieces(part);
        cost.sent += 2.0 * case.ranks() * others * part;
        (bytes, stride) = (part, stride * factor);
    }
    cost
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    if shape.base < 2 {
        return Err(Error::invalid(format!("allreduce bcube: base is {}; it must be at least 2", shape.base)));
    }
    let mut b = Builder::new();
    let sources = sources(shape);
    let mut range = shape.output(0);
    let mut stride = 1;
    let mut levels = Vec::new();
    for factor in factors(shape.size, base(shape)) {
        let digit = shape.rank / stride % factor;
        let peer = |other: usize| shape.rank - digit * stride + other * stride;
        let others = move || (1..factor).map(move |distance| (digit + distance) % factor);
        let first = levels.is_empty();
        let own = range.part(factor, digit);
        if shape.order == Order::Reproducible {
            for other in others() {
                apart(&sources, range.part(factor, other)).for_each(|part| b.send(peer(other), part));
            }
            combine_apart(&mut b, others().map(peer), apart(&sources, own).collect(), own);
            levels.push((range, factor, digit, stride));
            (range, stride) = (own, stride * factor);
            continue;
        }
        for other in others() {
            let mut part = range.part(factor, other);
            if first {
                part = contribution(&mut b, &sources, part.offset, part.len, part);
            }
            b.send(peer(other), part);
        }
        let mut current = if first { contribution(&mut b, &sources, own.offset, own.len, own) } else { own };
        if shape.order == Order::Ranks {
            combine_from_left(&mut b, (digit, factor), peer, current, own);
            levels.push((range, factor, digit, stride));
            (range, stride) = (own, stride * factor);
            continue;
        }
        // From the nearest to the farthest rank on either side, which keeps the operands in rank order.
        for other in (0..digit).rev().chain(digit + 1..factor) {
            b.recv_reduce(peer(other), own, current, if other < digit { Side::Left } else { Side::Right });
            current = own;
        }
        levels.push((range, factor, digit, stride));
        range = own;
        stride *= factor;
    }
    if levels.is_empty() {
        let current = contribution(&mut b, &sources, 0, range.len, range);
        b.copy(current, range);
    }
    b.divide(range, shape.divisor());
    fan_out(&mut b, shape, range);
    for (range, factor, digit, stride) in levels.into_iter().rev() {
        let peer = |other: usize| shape.rank - digit * stride + other * stride;
        for distance in 1..factor {
            b.send(peer((digit + distance) % factor), range.part(factor, digit));
        }
        for distance in 1..factor {
            let other = (digit + factor - distance) % factor;
            let part = range.part(factor, other);
            b.recv(peer(other), part);
            fan_out(&mut b, shape, part);
        }
    }
    Ok(b.build())
}

#[cfg(test)]
mod tests {
    use super::factors;

    #[test]
    fn factors_are_at_most_the_base_where_possible() {
        assert!(factors(1, 2).is_empty());
        assert_eq!(factors(8, 2), [2, 2, 2]);
        assert_eq!(factors(6, 2), [2, 3]);
        assert_eq!(factors(6, 4), [3, 2]);
        assert_eq!(factors(64, 4), [4, 4, 4]);
        assert_eq!(factors(12, 4), [4, 3]);
        assert_eq!(factors(7, 2), [7]);
        assert_eq!(factors(35, 3), [5, 7]);
        assert_eq!(factors(7, usize::MAX), [7]);
    }
}
