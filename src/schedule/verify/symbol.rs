//! Symbolic values. The value of an element is an expression over *contributions* (a rank and one of its inputs) and
//! the index at which all of them are taken. Equal expressions have equal numbers, so comparing trees means comparing
//! numbers, and all elements of a chunk share one expression.

use std::hash::{Hash, Hasher};

use super::Contract;
use super::pieces::Piece;
use crate::hash::{QuickHasher, QuickMap};
use crate::schedule::verify::Leaf;

/// The number of an expression.
pub(super) type Id = u32;

/// The expression of undefined memory.
pub(super) const UNDEFINED: Id = 0;

/// The value of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub expression: Id,
    pub element: u32,
}

impl Value {
    pub const UNDEFINED: Self = Self { expression: UNDEFINED, element: 0 };
}

impl Piece for Value {
    fn skip(self, by: u32) -> Self {
        if self.expression == UNDEFINED { self } else { Self { element: self.element + by, ..self } }
    }
}

fn hash_of(what: impl Hash) -> u64 {
    let mut hasher = QuickHasher::default();
    what.hash(&mut hasher);
    hasher.finish()
}

/// The properties of an expression.
#[derive(Clone, Copy)]
struct Expression {
    /// The leftmost and the rightmost contribution.
    first: u32,
    last: u32,
    /// Whether the contributions ascend from left to right.
    ascending: bool,
    /// Whether it is `((x0 op x1) op x2) op …` for consecutive ranks, where `xi` combines all that rank i contributes,
    /// from the left.
    fold: bool,
    /// 1 if the expression is not a quotient.
    divisor: u64,
    /// Of the whole tree.
    hash: u64,
    /// The contributions: index of their first run in [`Symbols::runs`], and the number of runs.
    runs: u32,
    len: u32,
}

/// Consecutive contributions: the first, and one past the last.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Run {
    start: u32,
    end: u32,
}

/// All expressions of an execution.
pub(super) struct Symbols {
    expressions: Vec<Expression>,
    /// The runs of all expressions, consecutively; ascending within an expression, without adjacent runs.
    runs: Vec<Run>,
    reductions: QuickMap<(Id, Id), Id>,
    /// The most recently requested reduction: left, right, result. The pieces of a chunk request the same one.
    newest: (Id, Id, Id),
    quotients: QuickMap<(Id, u32), Id>,
    /// The number of each rank's first contribution.
    offsets: Vec<u32>,
}

impl Symbols {
    pub fn new(contract: &dyn Contract) -> Self {
        let mut offsets = vec![0];
        for rank in 0..contract.ranks() {
            offsets.push(offsets[rank] + contract.contributions(rank));
        }
        let mut expressions =
            vec![Expression { first: 0, last: 0, ascending: false, fold: false, divisor: 1, hash: 0, runs: 0, len: 0 }];
        let mut runs = Vec::new();
        for number in 0..offsets[contract.ranks()] {
            expressions.push(Expression {
                first: number,
                last: number,
                ascending: true,
                fold: true,
                divisor: 1,
                hash: hash_of((number, 1)),
                runs: number,
                len: 1,
            });
            runs.push(Run { start: number, end: number + 1 });
        }
        Self {
            expressions,
            runs,
            reductions: QuickMap::default(),
            newest: (UNDEFINED, UNDEFINED, UNDEFINED),
            quotients: QuickMap::default(),
            offsets,
        }
    }

    fn runs(&self, id: Id) -> &[Run] {
        let Expression { runs, len, .. } = self.expressions[id as usize];
        &self.runs[runs as usize..][..len as usize]
    }

    pub fn leaf(&self, leaf: Leaf) -> Value {
        // Expression 0 is `UNDEFINED`.
        Value { expression: 1 + self.offsets[leaf.rank] + leaf.input, element: leaf.element as u32 }
    }

    /// The value of `left op right`.
    pub fn combine(&mut self, left: Value, right: Value) -> Result<Value, String> {
        if left == Value::UNDEFINED || right == Value::UNDEFINED {
            return Err("reduces undefined memory".into());
        }
        if left.element != right.element {
            return Err(format!("reduces different elements, {} and {}", left.element, right.element));
        }
        let (left, right, element) = (left.expression, right.expression, left.element);
        if (self.newest.0, self.newest.1) != (left, right) {
            let id = match self.reductions.get(&(left, right)) {
                Some(&known) => known,
                None => self.add_reduction(left, right)?,
            };
            self.newest = (left, right, id);
        }
        Ok(Value { expression: self.newest.2, element })
    }

    fn add_reduction(&mut self, left: Id, right: Id) -> Result<Id, String> {
        let (l, r) = (self.expressions[left as usize], self.expressions[right as usize]);
        if l.divisor != 1 || r.divisor != 1 {
            return Err("reduces a value that is already divided".into());
        }
        let runs = self.runs.len();
        if !self.unite(l, r) {
            return Err(format!("reduces a contribution twice: {} and {}", self.describe(left), self.describe(right)));
        }
        let id = self.expressions.len() as Id;
        let fold = self.adds_one_rank(left, right) && l.fold && r.fold;
        self.expressions.push(Expression {
            first: l.first,
            last: r.last,
            ascending: l.ascending && r.ascending && l.last < r.first,
            fold,
            divisor: 1,
            hash: hash_of((l.hash, r.hash)),
            runs: runs as u32,
            len: (self.runs.len() - runs) as u32,
        });
        self.reductions.insert((left, right), id);
        Ok(id)
    }

    /// Whether `right` is what the rank after those of `left` contributes, or the next contribution of the only rank of
    /// `left`.
    fn adds_one_rank(&self, left: Id, right: Id) -> bool {
        let rank = |contribution: u32| self.offsets.partition_point(|&offset| offset <= contribution) - 1;
        let (l, r) = (self.expressions[left as usize], self.expressions[right as usize]);
        let [first, last, from, to] = [l.first, l.last, r.first, r.last].map(rank);
        if l.last + 1 != r.first || from != to {
            return false;
        }
        let is_all = r.first == self.offsets[from] && r.last + 1 == self.offsets[from + 1];
        if last == from { first == from && r.first == r.last } else { is_all }
    }

    /// Appends the union of both lists of runs; `false` if they have a contribution in common.
    fn unite(&mut self, left: Expression, right: Expression) -> bool {
        let begin = self.runs.len();
        let (mut l, mut r) = (left.runs as usize, right.runs as usize);
        let (l_end, r_end) = (l + left.len as usize, r + right.len as usize);
        while l < l_end || r < r_end {
            let from_left = r == r_end || (l < l_end && self.runs[l].start < self.runs[r].start);
            let next = if from_left { &mut l } else { &mut r };
            let run = self.runs[*next];
            *next += 1;
            match self.runs[begin..].last_mut() {
                Some(last) if last.end > run.start => return false,
                Some(last) if last.end == run.start => last.end = run.end,
                _ => self.runs.push(run),
            }
        }
        true
    }

    /// The value of `of / by`.
    pub fn divide(&mut self, of: Value, by: u32) -> Result<Value, String> {
        let Value { expression: of, element } = of;
        let id = match self.quotients.get(&(of, by)) {
            Some(&known) => known,
            None => {
                let e = self.expressions[of as usize];
                if of == UNDEFINED || e.divisor != 1 {
                    return Err(format!("divides {}", self.describe(of)));
                }
                let id = self.expressions.len() as Id;
                self.expressions.push(Expression { divisor: u64::from(by), hash: hash_of((e.hash, by)), ..e });
                self.quotients.insert((of, by), id);
                id
            }
        };
        Ok(Value { expression: id, element })
    }

    /// Whether `id` contains all contributions of `ranks`, no other, and has this divisor.
    pub fn is_total(&self, id: Id, ranks: &std::ops::Range<usize>, divisor: u64) -> bool {
        let all = Run { start: self.offsets[ranks.start], end: self.offsets[ranks.end] };
        self.expressions[id as usize].divisor == divisor && self.runs(id) == [all]
    }

    /// Whether the contributions of `id` ascend from left to right.
    pub fn ascends(&self, id: Id) -> bool {
        self.expressions[id as usize].ascending
    }

    /// Whether `id` is the fold of what the ranks contribute, from the left.
    pub fn folds(&self, id: Id) -> bool {
        self.expressions[id as usize].fold
    }

    /// A number that is equal for equal trees.
    pub fn hash(&self, id: Id) -> u64 {
        self.expressions[id as usize].hash
    }

    /// The expression as text for error messages.
    pub fn describe(&self, id: Id) -> String {
        if id == UNDEFINED {
            return "undefined memory".into();
        }
        let divisor = self.expressions[id as usize].divisor;
        let numbers = self.runs(id).iter().flat_map(|run| run.start..run.end);
        let contributions = numbers.map(|number| {
            let rank = self.offsets.partition_point(|&offset| offset <= number) - 1;
            format!("{rank}.{}", number - self.offsets[rank])
        });
        let by = if divisor == 1 { String::new() } else { format!(" / {divisor}") };
        format!("({}){by}", contributions.collect::<Vec<_>>().join(" op "))
    }
}
