//! A fast hash for small keys that do not come from untrusted sources; it does not resist collision attacks.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Combines words by multiplication and rotation.
#[derive(Default)]
pub struct QuickHasher(u64);

impl Hasher for QuickHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        chunks.by_ref().for_each(|c| self.write_u64(u64::from_ne_bytes(c.try_into().expect("8 bytes"))));
        chunks.remainder().iter().for_each(|b| self.write_u64(u64::from(*b)));
    }
    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A map that hashes with [`QuickHasher`].
pub type QuickMap<K, V> = HashMap<K, V, BuildHasherDefault<QuickHasher>>;
