//! Expressions instead of numbers. An element's value is an expression over *contributions* (a rank and one of its inputs)
//! and the index at which all of them are taken. Equal expressions have equal numbers, so comparing trees is comparing
//! numbers, and all elements of a chunk share one.

use std::collections::HashMap;

use super::Contract;
use crate::schedule::verify::Leaf;

/// Number of an expression.
pub(super) type Id = u32;

/// The expression of memory that holds nothing to read.
pub(super) const UNDEFINED: Id = 0;

/// What one element holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub expression: Id,
    pub element: u32,
}

impl Value {
    pub const UNDEFINED: Self = Self { expression: UNDEFINED, element: 0 };
}

/// What is known of an expression.
struct Expression {
    /// One bit for each contribution in it.
    contributions: Box<[u64]>,
    /// The leftmost and the rightmost.
    first: u32,
    last: u32,
    /// Whether they ascend from left to right.
    ascending: bool,
    /// 1 if it is not a quotient.
    divisor: u64,
}

/// All expressions of one execution.
pub(super) struct Symbols {
    expressions: Vec<Expression>,
    reductions: HashMap<(Id, Id), Id>,
    /// The newest of them that was asked for; the elements of a chunk ask the same.
    newest: (Id, Id, Id),
    quotients: HashMap<(Id, u32), Id>,
    /// By rank: number of its first contribution.
    offsets: Vec<u32>,
}

impl Symbols {
    pub fn new(contract: &dyn Contract) -> Self {
        let mut offsets = vec![0];
        for rank in 0..contract.ranks() {
            offsets.push(offsets[rank] + contract.contributions(rank));
        }
        let total = offsets[contract.ranks()];
        let words = total.div_ceil(64) as usize;
        let nothing =
            Expression { contributions: vec![0; words].into(), first: 0, last: 0, ascending: false, divisor: 1 };
        let leaves = (0..total).map(|number| {
            let mut contributions = vec![0; words];
            contributions[number as usize / 64] |= 1 << (number % 64);
            let contributions = contributions.into();
            Expression { contributions, first: number, last: number, ascending: true, divisor: 1 }
        });
        let expressions = std::iter::once(nothing).chain(leaves).collect();
        Self {
            expressions,
            reductions: HashMap::new(),
            newest: (UNDEFINED, UNDEFINED, UNDEFINED),
            quotients: HashMap::new(),
            offsets,
        }
    }

    pub fn leaf(&self, leaf: Leaf) -> Value {
        // Number 0 is the undefined one.
        Value { expression: 1 + self.offsets[leaf.rank] + leaf.input, element: leaf.element as u32 }
    }

    /// `left op right`.
    pub fn reduce(&mut self, left: Id, right: Id) -> Result<Id, String> {
        if left == UNDEFINED || right == UNDEFINED {
            return Err("reduces undefined memory".into());
        }
        if self.newest.0 == left && self.newest.1 == right {
            return Ok(self.newest.2);
        }
        let id = match self.reductions.get(&(left, right)) {
            Some(&known) => known,
            None => self.add_reduction(left, right)?,
        };
        self.newest = (left, right, id);
        Ok(id)
    }

    fn add_reduction(&mut self, left: Id, right: Id) -> Result<Id, String> {
        let (l, r) = (&self.expressions[left as usize], &self.expressions[right as usize]);
        if l.divisor != 1 || r.divisor != 1 {
            return Err("reduces what has been divided already".into());
        }
        if l.contributions.iter().zip(&r.contributions).any(|(a, b)| a & b != 0) {
            return Err(format!("reduces a contribution twice: {} and {}", self.describe(left), self.describe(right)));
        }
        let expression = Expression {
            contributions: l.contributions.iter().zip(&r.contributions).map(|(a, b)| a | b).collect(),
            first: l.first,
            last: r.last,
            ascending: l.ascending && r.ascending && l.last < r.first,
            divisor: 1,
        };
        let id = self.expressions.len() as Id;
        self.expressions.push(expression);
        self.reductions.insert((left, right), id);
        Ok(id)
    }

    /// `of / by`.
    pub fn divide(&mut self, of: Id, by: u32) -> Result<Id, String> {
        if let Some(&known) = self.quotients.get(&(of, by)) {
            return Ok(known);
        }
        let e = &self.expressions[of as usize];
        if of == UNDEFINED || e.divisor != 1 {
            return Err(format!("divides {}", self.describe(of)));
        }
        let expression = Expression { contributions: e.contributions.clone(), divisor: u64::from(by), ..*e };
        let id = self.expressions.len() as Id;
        self.expressions.push(expression);
        self.quotients.insert((of, by), id);
        Ok(id)
    }

    /// Whether `id` has all contributions of `ranks`, no other, and that divisor.
    pub fn is_total(&self, id: Id, ranks: &std::ops::Range<usize>, divisor: u64) -> bool {
        let e = &self.expressions[id as usize];
        let wanted = self.offsets[ranks.start]..self.offsets[ranks.end];
        let count: u32 = e.contributions.iter().map(|word| word.count_ones()).sum();
        let has = |number: u32| e.contributions[number as usize / 64] >> (number % 64) & 1 == 1;
        e.divisor == divisor && count == wanted.len() as u32 && wanted.into_iter().all(has)
    }

    /// Whether its contributions ascend from left to right.
    pub fn ascends(&self, id: Id) -> bool {
        self.expressions[id as usize].ascending
    }

    /// For messages.
    pub fn describe(&self, id: Id) -> String {
        if id == UNDEFINED {
            return "undefined memory".into();
        }
        let e = &self.expressions[id as usize];
        let mut ranks = Vec::new();
        for (rank, bounds) in self.offsets.windows(2).enumerate() {
            for number in bounds[0]..bounds[1] {
                if e.contributions[number as usize / 64] >> (number % 64) & 1 == 1 {
                    ranks.push(format!("{rank}.{}", number - bounds[0]));
                }
            }
        }
        let by = if e.divisor == 1 { String::new() } else { format!(" / {}", e.divisor) };
        format!("({}){by}", ranks.join(" op "))
    }
}
