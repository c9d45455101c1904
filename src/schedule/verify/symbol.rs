//! Expressions instead of numbers. An element's value is an expression over *contributions* (a rank and one of its inputs)
//! and the index at which all of them are taken. Equal expressions have equal numbers, so comparing trees is comparing
//! numbers, and all elements of a chunk share one.

use super::Contract;
use crate::hash::QuickMap;
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
    /// For each of them one bit for each contribution in it; `words` words.
    contributions: Vec<u64>,
    words: usize,
    reductions: QuickMap<(Id, Id), Id>,
    /// The newest of them that was asked for; the elements of a chunk ask the same.
    newest: (Id, Id, Id),
    quotients: QuickMap<(Id, u32), Id>,
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
        let mut contributions = vec![0; words];
        let mut expressions = vec![Expression { first: 0, last: 0, ascending: false, divisor: 1 }];
        for number in 0..total {
            contributions.extend((0..words as u32).map(|word| u64::from(number / 64 == word) << (number % 64)));
            expressions.push(Expression { first: number, last: number, ascending: true, divisor: 1 });
        }
        Self {
            expressions,
            contributions,
            words,
            reductions: QuickMap::default(),
            newest: (UNDEFINED, UNDEFINED, UNDEFINED),
            quotients: QuickMap::default(),
            offsets,
        }
    }

    fn contributions(&self, id: Id) -> &[u64] {
        &self.contributions[id as usize * self.words..][..self.words]
    }

    fn has(&self, id: Id, number: u32) -> bool {
        self.contributions(id)[number as usize / 64] >> (number % 64) & 1 == 1
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
        let both = || self.contributions(left).iter().zip(self.contributions(right));
        if both().any(|(a, b)| a & b != 0) {
            return Err(format!("reduces a contribution twice: {} and {}", self.describe(left), self.describe(right)));
        }
        let expression = Expression {
            first: l.first,
            last: r.last,
            ascending: l.ascending && r.ascending && l.last < r.first,
            divisor: 1,
        };
        let (left_words, right_words) = (left as usize * self.words, right as usize * self.words);
        for word in 0..self.words {
            self.contributions.push(self.contributions[left_words + word] | self.contributions[right_words + word]);
        }
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
        let expression = Expression { divisor: u64::from(by), ..*e };
        let words = of as usize * self.words;
        self.contributions.extend_from_within(words..words + self.words);
        let id = self.expressions.len() as Id;
        self.expressions.push(expression);
        self.quotients.insert((of, by), id);
        Ok(id)
    }

    /// Whether `id` has all contributions of `ranks`, no other, and that divisor.
    pub fn is_total(&self, id: Id, ranks: &std::ops::Range<usize>, divisor: u64) -> bool {
        let mut wanted = self.offsets[ranks.start]..self.offsets[ranks.end];
        let count: u32 = self.contributions(id).iter().map(|word| word.count_ones()).sum();
        let divided = self.expressions[id as usize].divisor == divisor;
        divided && count == wanted.len() as u32 && wanted.all(|number| self.has(id, number))
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
        let divisor = self.expressions[id as usize].divisor;
        let mut ranks = Vec::new();
        for (rank, bounds) in self.offsets.windows(2).enumerate() {
            for number in bounds[0]..bounds[1] {
                if self.has(id, number) {
                    ranks.push(format!("{rank}.{}", number - bounds[0]));
                }
            }
        }
        let by = if divisor == 1 { String::new() } else { format!(" / {divisor}") };
        format!("({}){by}", ranks.join(" op "))
    }
}
