//! Allocations that fail with an error, where those of the standard library end the process. For memory whose length a
//! peer, a store or the caller determines.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::{BuildHasher, Hash};

use crate::error::{Error, ErrorKind, Result};

/// Longest allocation that need not be made with this module; `docs/semantics.md` names it.
pub const SMALL_BYTES: usize = 16 << 10;

/// The error that there is no memory for `bytes` bytes, which are `what`.
#[cold]
pub fn exhausted(bytes: usize, what: impl Display) -> Error {
    Error::new(ErrorKind::ResourceExhausted, format!("no memory for {bytes} bytes: {what}"))
}

/// Makes room for `n` more elements.
pub fn try_reserve<T>(vec: &mut Vec<T>, n: usize, what: impl Display) -> Result<()> {
    vec.try_reserve(n).map_err(|_| exhausted((vec.len().saturating_add(n)).saturating_mul(size_of::<T>()), what))
}

/// An empty vector with room for `n` elements, and no more.
pub fn try_with_capacity<T>(n: usize, what: impl Display) -> Result<Vec<T>> {
    let mut vec = Vec::new();
    match vec.try_reserve_exact(n) {
        Ok(()) => Ok(vec),
        Err(_) => Err(exhausted(n.saturating_mul(size_of::<T>()), what)),
    }
}

/// `n` zeros.
pub fn try_zeros<T: Copy + Default>(n: usize, what: impl Display) -> Result<Vec<T>> {
    let mut zeros = try_with_capacity(n, what)?;
    zeros.resize(n, T::default());
    Ok(zeros)
}

/// A copy of `items`.
pub fn try_copy<T: Copy>(items: &[T], what: impl Display) -> Result<Vec<T>> {
    let mut copy = try_with_capacity(items.len(), what)?;
    copy.extend_from_slice(items);
    Ok(copy)
}

/// All items, or the first error among them.
pub fn try_collect<T>(items: impl ExactSizeIterator<Item = Result<T>>, what: impl Display) -> Result<Vec<T>> {
    let mut all = try_with_capacity(items.len(), what)?;
    for item in items {
        all.push(item?);
    }
    Ok(all)
}

/// Makes room for one more entry.
pub fn try_reserve_entry<K: Eq + Hash, V, S: BuildHasher>(
    map: &mut HashMap<K, V, S>,
    what: impl Display,
) -> Result<()> {
    map.try_reserve(1).map_err(|_| exhausted(map.len().saturating_add(1).saturating_mul(size_of::<(K, V)>()), what))
}

/// Fails if `bytes` bytes cannot be allocated now. For code that cannot fail where it allocates and needs at most so
/// many: it can still end the process if other threads take the memory meanwhile.
pub fn check_room(bytes: usize, what: impl Display) -> Result<()> {
    // `black_box` prevents the compiler from removing the unused allocation.
    if std::hint::black_box(Vec::<u8>::new()).try_reserve_exact(bytes).is_ok() {
        return Ok(());
    }
    Err(exhausted(bytes, what))
}
