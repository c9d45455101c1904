//! Memory represented in pieces: neighbouring elements with the same description are stored once. A whole buffer costs
//! as much as one element, so the number of elements hardly matters.

/// The description of the elements of a piece.
pub(super) trait Piece: Copy + PartialEq {
    /// The description of the piece's elements from index `by` on.
    fn skip(self, by: u32) -> Self;
}

/// A description of every element of a memory.
#[derive(Clone)]
pub(super) struct Pieces<T> {
    /// Indexed by element: the description from this element on. Valid only where a piece begins.
    values: Vec<T>,
    /// A bit per element: set if a piece begins there.
    begins: Vec<u64>,
}

impl<T: Piece> Pieces<T> {
    /// `len` elements with the same description. A piece begins at each of `begins`, which bounds searches.
    pub fn new(len: usize, begins: impl IntoIterator<Item = usize>, value: T) -> Self {
        let mut pieces = Self { values: vec![value; len + 1], begins: vec![0; len / 64 + 1] };
        // A sentinel after the last element, so that every piece ends where another begins.
        begins.into_iter().chain([0, len]).for_each(|at| pieces.begin(at));
        pieces
    }

    fn begin(&mut self, at: usize) {
        self.begins[at / 64] |= 1 << (at % 64);
    }

    /// The start of the piece that contains element `at`.
    fn beginning(&self, at: usize) -> usize {
        let mut word = at / 64;
        let mut bits = self.begins[word] & (u64::MAX >> (63 - at % 64));
        while bits == 0 {
            word -= 1;
            bits = self.begins[word];
        }
        word * 64 + 63 - bits.leading_zeros() as usize
    }

    /// The end of the piece that contains element `at`.
    fn end(&self, at: usize) -> usize {
        let mut word = (at + 1) / 64;
        let mut bits = self.begins[word] & (u64::MAX << ((at + 1) % 64));
        while bits == 0 {
            word += 1;
            bits = self.begins[word];
        }
        word * 64 + bits.trailing_zeros() as usize
    }

    /// The description of element `at`.
    fn get(&self, at: usize) -> T {
        let beginning = self.beginning(at);
        self.values[beginning].skip((at - beginning) as u32)
    }

    /// The description from element `at` on, and where it ends; at most `limit`.
    pub fn from(&self, at: u32, limit: u32) -> (T, u32) {
        (self.get(at as usize), limit.min(self.end(at as usize) as u32))
    }

    /// The descriptions of `len` elements from `start` on.
    pub fn elements(&self, start: usize, len: usize) -> impl Iterator<Item = T> {
        let (mut at, end) = (start as u32, (start + len) as u32);
        let pieces = std::iter::from_fn(move || {
            let (value, next) = (at < end).then(|| self.from(at, end))?;
            let piece = (0..next - at).map(move |by| value.skip(by));
            at = next;
            Some(piece)
        });
        pieces.flatten()
    }

    /// Splits the piece that contains `at`, so that a piece begins there.
    pub fn cut(&mut self, at: u32) {
        self.values[at as usize] = self.get(at as usize);
        self.begin(at as usize);
    }

    /// Changes the description of the piece that begins at `at`. Returns the end of the piece.
    pub fn change(&mut self, at: u32, change: impl FnOnce(&mut T)) -> u32 {
        change(&mut self.values[at as usize]);
        self.end(at as usize) as u32
    }

    /// Makes the elements `start..end` one piece.
    pub fn set(&mut self, start: u32, end: u32, value: T) {
        self.cut(end);
        let (start, end) = (start as usize, end as usize);
        // Clear all beginnings between `start` and `end`.
        let (first, last) = (start / 64, end / 64);
        let (below, above) = (!(u64::MAX << (start % 64)), u64::MAX << (end % 64));
        if first == last {
            self.begins[first] &= below | above;
        } else {
            self.begins[first] &= below;
            self.begins[first + 1..last].fill(0);
            self.begins[last] &= above;
        }
        self.begin(start);
        self.values[start] = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A number that increases by one per element of a piece.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Counter(u32);

    impl Piece for Counter {
        fn skip(self, by: u32) -> Self {
            Self(self.0 + by)
        }
    }

    proptest! {
        /// Pieces behave like an array of elements.
        #[test]
        fn pieces_are_elements(len in 1usize..300, writes in prop::collection::vec((0usize..300, 0usize..300, 0u32..9000), 0..40)) {
            let mut pieces = Pieces::new(len, [len / 2], Counter(7));
            let mut elements: Vec<u32> = (0..len).map(|at| 7 + (if at < len / 2 { at } else { at - len / 2 }) as u32).collect();
            for (a, b, first) in writes {
                let (a, b) = (a % len, b % len);
                let (start, end) = (a.min(b), a.max(b) + 1);
                pieces.set(start as u32, end as u32, Counter(first));
                elements[start..end].iter_mut().zip(first..).for_each(|(element, value)| *element = value);
                pieces.cut(b as u32);
                prop_assert!(pieces.elements(0, len).eq(elements.iter().map(|element| Counter(*element))));
                prop_assert!(pieces.elements(start, end - start).eq(elements[start..end].iter().map(|e| Counter(*e))));
                let mut at = 0;
                while at < len as u32 {
                    let (value, end) = pieces.from(at, len as u32);
                    prop_assert!((at..end).all(|i| value.skip(i - at) == Counter(elements[i as usize])));
                    prop_assert!(end > at);
                    at = end;
                }
                prop_assert_eq!(at, len as u32);
            }
        }
    }
}
