//! The cache of prepared calls, by their arguments.

use std::ffi::c_void;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::collective::{Collective, DEFAULT_BASE, Order, Shape};
use crate::engine::plan::Usage;
use crate::engine::prepared::{Arguments, Prepared};
use crate::hash::QuickHasher;
use crate::types::ElementType;

/// The arguments of a call, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// From the lowest byte on: the collective's number, the data type's, the operation's, and the buffers; then the
    /// root.
    what: u64,
    /// Number of elements; with [`HAS_MORE`], a hash of all arguments.
    count: usize,
}

/// Bits of a key. The input is NULL, or there is none.
const NO_INPUT: u64 = 1 << 24;
/// The input is also the output.
const IN_PLACE: u64 = 1 << 25;
/// The numbers of buffers are those of the shape, and not what a function with one input and one output makes of its
/// pointers.
const BY_SHAPE: u64 = 1 << 26;
/// The call has more arguments than fit into the numbers.
const HAS_MORE: u64 = 1 << 27;
/// The first of the bits between these and the root.
const UNUSED_BITS: u32 = 28;

impl Key {
    /// The key of a call by a function with one input and one output. `None` if a number is that of no type or
    /// operation.
    #[inline]
    pub fn new(
        collective: u8,
        (dtype, op): (u32, u32),
        root: i32,
        count: usize,
        input: *const c_void,
        output: *const c_void,
    ) -> Option<Self> {
        if dtype | op > u32::from(u8::MAX) {
            return None;
        }
        let buffers = (u64::from(input.is_null()) * NO_INPUT) | (u64::from(input == output) * IN_PLACE);
        let numbers = u64::from(collective) | u64::from(dtype) << 8 | u64::from(op) << 16;
        Some(Self { what: numbers | buffers | u64::from(root as u32) << 32, count })
    }

    /// The collective's number.
    pub fn collective(&self) -> u8 {
        self.what as u8
    }

    /// The data type's number.
    pub fn dtype(&self) -> u8 {
        (self.what >> 8) as u8
    }

    /// The operation's number.
    pub fn op(&self) -> u8 {
        (self.what >> 16) as u8
    }

    /// The root.
    pub fn root(&self) -> i32 {
        (self.what >> 32) as i32
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether the input is not NULL, and has another address than the output.
    pub fn has_other_input(&self) -> bool {
        self.what & (NO_INPUT | IN_PLACE) == 0
    }

    /// A hash, of which the highest bits are the best.
    #[inline(always)] // On the path of small collectives.
    fn hash(&self) -> u64 {
        // The lowest bits of the length meet bits that are always 0.
        (self.what ^ (self.count as u64).rotate_left(UNUSED_BITS)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// What a call is looked up by: its numbers, and all its arguments, borrowed, where the numbers do not hold them.
#[derive(Clone, Copy, Debug)]
pub struct CallKey<'a> {
    key: Key,
    arguments: Option<Arguments<'a>>,
}

impl From<Key> for CallKey<'_> {
    fn from(key: Key) -> Self {
        Self { key, arguments: None }
    }
}

impl<'a> CallKey<'a> {
    /// The key of a call with these arguments. `is_average`: whether its operation makes averages.
    pub fn new(arguments: Arguments<'a>, is_average: bool) -> Self {
        let Arguments { shape, dtype, operation, algorithm, max_segment_bytes } = arguments;
        // Lists all fields, so that a new one cannot be forgotten.
        let Shape {
            collective,
            rank: _,
            size: _,
            root,
            count,
            send_counts,
            recv_counts,
            inputs,
            outputs,
            blocks,
            average,
            means,
            order,
            base,
            destinations,
            groups,
            shared,
            domains,
            dims,
            links,
            counts,
        } = shape;
        let lists = send_counts.len() | recv_counts.len() | groups.len() | domains.len() | dims.len() | links.len();
        let usual_outputs = usize::from(collective != Collective::Barrier);
        let numbers = u64::from(collective as u8) | u64::from(operation as u8) << 16 | BY_SHAPE;
        match (dtype, u32::try_from(root)) {
            (ElementType::Known(dtype), Ok(root))
                if lists | counts.len() | destinations == 0
                    && inputs <= 1
                    && (outputs, base, average) == (usual_outputs, DEFAULT_BASE, is_average)
                    && !(means || shared || blocks)
                    && order == Order::Any
                    && algorithm.is_none()
                    && max_segment_bytes.is_none() =>
            {
                let input = u64::from(inputs == 0) * NO_INPUT;
                let what = numbers | u64::from(dtype as u32) << 8 | input | u64::from(root) << 32;
                Self { key: Key { what, count }, arguments: None }
            }
            _ => {
                let mut hasher = QuickHasher::default();
                arguments.hash(&mut hasher);
                let key = Key { what: numbers | HAS_MORE, count: hasher.finish() as usize };
                Self { key, arguments: Some(arguments) }
            }
        }
    }

    /// The arguments, if there are more than the numbers hold.
    pub fn arguments(&self) -> Option<&Arguments<'a>> {
        self.arguments.as_ref()
    }

    /// Whether `call`, which is in the cache with the numbers `key`, has these arguments.
    fn is(&self, key: &Key, call: &Prepared) -> bool {
        let is_same = |arguments: &Arguments<'_>| call.arguments.as_ref().is_some_and(|own| own.is(arguments));
        *key == self.key && self.arguments.as_ref().is_none_or(is_same)
    }
}

/// A hash table with open addressing: a call is at the first place from its key's position on that no other call has.
#[derive(Default)]
pub struct CallCache {
    /// A power of two of places, of which at least half are empty; or none.
    places: Box<[Place]>,
    /// By how much a key's hash is shifted for its position.
    shift: u32,
    usage: Usage,
    /// What was removed, and calls in progress may use.
    removed: Vec<Arc<Prepared>>,
}

type Place = Option<(Key, Arc<Prepared>)>;

/// Places of the smallest table that has any.
const MIN_PLACES: usize = 64;

impl CallCache {
    /// The call with these numbers, if it is in the cache. Valid until [`CallCache::set`] or [`CallCache::clear`] is
    /// called while no call of the cache is in progress.
    #[inline(always)] // On the path of small collectives.
    pub fn get(&self, key: &Key) -> Option<&Prepared> {
        let at = position(key, self.shift);
        match self.places.get(at & self.places.len().wrapping_sub(1))? {
            Some((own, call)) if own == key => Some(call),
            Some(_) => self.find(at + 1, |own, _| own == key).map(|call| &**call),
            None => None,
        }
    }

    /// The call with these arguments, if it is in the cache.
    pub fn get_any(&self, key: &CallKey<'_>) -> Option<&Arc<Prepared>> {
        self.find(position(&key.key, self.shift), |own, call| key.is(own, call))
    }

    /// The first call for which `is` returns true, from the place `at` on to the next that is empty.
    #[inline(never)]
    fn find(&self, mut at: usize, is: impl Fn(&Key, &Prepared) -> bool) -> Option<&Arc<Prepared>> {
        loop {
            let (own, call) = self.places.get(at & self.places.len().wrapping_sub(1))?.as_ref()?;
            if is(own, call) {
                return Some(call);
            }
            at += 1;
        }
    }

    /// Adds a call, or replaces it. Where the cache is full, all others are removed first; where there is no memory,
    /// nothing is done. `idle`: no call of the cache is in progress.
    pub fn set(&mut self, key: &CallKey<'_>, call: Arc<Prepared>, idle: bool) {
        if self.get_any(key).is_none() {
            if self.usage.add(&call.plan) {
                self.remove_all();
            }
            if 2 * self.usage.plans() > self.places.len() && !self.grow() {
                return;
            }
        }
        let replaced = self.put(key, call);
        self.removed.extend(replaced);
        if idle {
            self.removed.clear();
        }
    }

    /// Removes all calls. `idle` as above.
    pub fn clear(&mut self, idle: bool) {
        self.remove_all();
        self.usage = Usage::default();
        if idle {
            self.removed.clear();
        }
    }

    fn remove_all(&mut self) {
        let removed = self.places.iter_mut().filter_map(Option::take).map(|(_, call)| call);
        self.removed.extend(removed);
    }

    /// Twice as many places. Returns whether there is memory for them.
    fn grow(&mut self) -> bool {
        let number = (2 * self.places.len()).max(MIN_PLACES);
        let mut places = Vec::new();
        if places.try_reserve_exact(number).is_err() {
            return false;
        }
        places.resize_with(number, || None);
        let before = std::mem::replace(&mut self.places, places.into_boxed_slice());
        self.shift = u64::BITS - number.trailing_zeros();
        for (key, call) in before.into_iter().flatten() {
            let at = self.place(&key, |_, _| false);
            self.places[at] = Some((key, call));
        }
        true
    }

    /// The place of the first call from the key's position on for which `is` returns true, or the first that no call
    /// has. There must be places.
    fn place(&self, key: &Key, is: impl Fn(&Key, &Prepared) -> bool) -> usize {
        let (last, mut at) = (self.places.len() - 1, position(key, self.shift));
        while self.places[at & last].as_ref().is_some_and(|(own, call)| !is(own, call)) {
            at += 1;
        }
        at & last
    }

    /// Returns what it replaces.
    fn put(&mut self, key: &CallKey<'_>, call: Arc<Prepared>) -> Option<Arc<Prepared>> {
        let at = self.place(&key.key, |own, call| key.is(own, call));
        self.places[at].replace((key.key, call)).map(|(_, call)| call)
    }
}

#[inline(always)] // On the path of small collectives.
fn position(key: &Key, shift: u32) -> usize {
    key.hash().wrapping_shr(shift) as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::engine::plan::MAX_CACHED;
    use crate::engine::prepared::OwnedArguments;
    use crate::engine::shared::tests;

    fn key(count: usize) -> Key {
        Key::new(1, (2, 3), 0, count, std::ptr::null(), std::ptr::null()).unwrap()
    }

    fn set(cache: &mut CallCache, count: usize, idle: bool) {
        let call = tests::prepared(tests::sum(0, 2, 1).plan, count);
        cache.set(&key(count).into(), Arc::new(call), idle);
    }

    #[test]
    fn as_many_calls_as_may_be_are_found_again() {
        let mut cache = CallCache::default();
        assert!(cache.get(&key(1)).is_none());
        // Lengths that are multiples of a power of two have few different bits.
        let lengths = || (0..MAX_CACHED).map(|n| (n % 3 + 1) << (n / 3 % 40) | (n / 120) << 50);
        lengths().for_each(|count| set(&mut cache, count, true));
        let number = lengths().collect::<std::collections::HashSet<_>>().len();
        assert!(number > MAX_CACHED / 2, "{number} different lengths");
        for count in lengths() {
            assert_eq!(cache.get(&key(count)).map(|call| call.count), Some(count));
            assert_eq!(cache.get_any(&key(count).into()).map(|call| call.count), Some(count));
        }
        assert!(cache.places.len() >= 2 * number && cache.places.len() <= 4 * MAX_CACHED);
        assert!(cache.removed.is_empty());
    }

    #[test]
    fn a_full_cache_takes_another_call_and_keeps_what_is_in_use() {
        let mut cache = CallCache::default();
        (0..MAX_CACHED).for_each(|count| set(&mut cache, count, true));
        let first = std::ptr::from_ref(cache.get(&key(0)).unwrap());
        set(&mut cache, MAX_CACHED, false);
        assert!(cache.get(&key(0)).is_none() && cache.get(&key(MAX_CACHED)).is_some());
        assert_eq!(cache.removed.len(), MAX_CACHED);
        assert!(cache.removed.iter().any(|call| std::ptr::eq(first, &**call)));
        set(&mut cache, 0, true);
        assert!(cache.removed.is_empty() && cache.get(&key(0)).is_some());
        cache.clear(false);
        assert!(cache.get(&key(0)).is_none() && cache.removed.len() == 2);
    }

    #[test]
    fn a_call_that_is_set_again_takes_no_other_place() {
        let mut cache = CallCache::default();
        (0..3 * MAX_CACHED).for_each(|_| set(&mut cache, 5, true));
        assert_eq!((cache.usage.plans(), cache.places.len()), (1, MIN_PLACES));
    }

    #[test]
    fn keys_of_different_arguments_differ() {
        let [a, b] = [8, 16].map(std::ptr::without_provenance::<c_void>);
        let null = std::ptr::null();
        let key = |dtype, op, root, count, input, output| Key::new(3, (dtype, op), root, count, input, output);
        let keys = [
            key(1, 2, 0, 5, a, b),
            key(2, 1, 0, 5, a, b),
            key(1, 2, -1, 5, a, b),
            key(1, 2, 1, 5, a, b),
            key(1, 2, 0, 6, a, b),
            key(1, 2, 0, 5, null, b),
            key(1, 2, 0, 5, a, a),
            key(1, 2, 0, 5, null, null),
            Key::new(4, (1, 2), 0, 5, a, b),
        ];
        for (index, one) in keys.iter().enumerate() {
            assert!(one.is_some() && !keys[index + 1..].contains(one), "{one:?}");
        }
        assert_eq!(key(1, 2, 0, 5, a, b), key(1, 2, 0, 5, b, a), "only whether they are equal");
        assert_eq!((key(256, 2, 0, 5, a, b), key(1, 256, 0, 5, a, b)), (None, None));
        let key = key(200, 7, -2, 9, a, b).unwrap();
        assert_eq!((key.collective(), key.dtype(), key.op(), key.root(), key.count()), (3, 200, 7, -2, 9));
    }

    #[test]
    fn arguments_that_differ_are_other_calls() {
        use crate::types::{DataType, ReduceOp};
        use crate::wire::fingerprint::USER_OPERATION;

        let shape = Shape::new(Collective::Allreduce, 1, 4, 100);
        let (dtype, operation) = (DataType::Float32.into(), ReduceOp::Sum as u32);
        let arguments = Arguments { shape, dtype, operation, algorithm: None, max_segment_bytes: None };
        let of = |shape| Arguments { shape, ..arguments };
        let all = [
            arguments,
            of(Shape { collective: Collective::Reduce, ..shape }),
            of(Shape { root: 1, ..shape }),
            of(Shape { count: 101, ..shape }),
            of(Shape { inputs: 0, ..shape }),
            of(Shape { outputs: 2, ..shape }),
            of(Shape { blocks: true, ..shape }),
            of(Shape { order: Order::Ranks, ..shape }),
            of(Shape { average: true, ..shape }),
            of(Shape { base: 3, ..shape }),
            of(Shape { destinations: 1, ..shape }),
            of(Shape { send_counts: &[1], ..shape }),
            of(Shape { recv_counts: &[1], ..shape }),
            of(Shape { recv_counts: &[2], ..shape }),
            of(Shape { recv_counts: &[1, 2], ..shape }),
            of(Shape { groups: &[1], ..shape }),
            of(Shape { dims: &[1], ..shape }),
            of(Shape { links: &[1], ..shape }),
            of(Shape { counts: &[1], ..shape }),
            Arguments { algorithm: Some("ring"), ..arguments },
            Arguments { algorithm: Some("bcube"), ..arguments },
            Arguments { dtype: DataType::Int32.into(), ..arguments },
            Arguments { dtype: ElementType::Opaque(4), operation: USER_OPERATION, ..arguments },
            Arguments { dtype: ElementType::Opaque(8), operation: USER_OPERATION, ..arguments },
            Arguments { operation: ReduceOp::Max as u32, ..arguments },
            Arguments { operation: USER_OPERATION, ..arguments },
            Arguments { max_segment_bytes: Some(1 << 20), ..arguments },
            Arguments { max_segment_bytes: Some(100), ..arguments },
        ];
        let mut cache = CallCache::default();
        for (index, arguments) in all.iter().enumerate() {
            let key = CallKey::new(*arguments, false);
            assert!(cache.get_any(&key).is_none(), "another one's: {arguments:?}");
            let mut call = tests::prepared(tests::sum(0, 2, 1).plan, index);
            let own = key.arguments().map(|own| {
                OwnedArguments::new(
                    own,
                    arguments.algorithm.map(|name| match name {
                        "ring" => "ring",
                        _ => "bcube",
                    }),
                )
            });
            call.arguments = own.transpose().unwrap().map(Box::new);
            cache.set(&key, Arc::new(call), true);
        }
        for (index, arguments) in all.iter().enumerate() {
            let found = cache.get_any(&CallKey::new(*arguments, false)).map(|call| call.count);
            assert_eq!(found, Some(index), "{arguments:?}");
        }
        // By shape, and by the pointers of a function with one input and one output, are different descriptions.
        let [a, b] = [8, 16].map(std::ptr::without_provenance::<c_void>);
        let plain = Key::new(Collective::Allreduce as u8, (DataType::Float32 as u32, operation), 0, 100, a, b).unwrap();
        assert!(cache.get(&plain).is_none());
    }
}
