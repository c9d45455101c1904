//! Bytes on their way through a session.

/// Bytes that are taken from the front; room for more is behind them.
#[derive(Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Buffer {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Those that were not taken.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    /// The first bytes have been taken.
    pub fn advance(&mut self, count: usize) {
        self.begin += count;
        if self.is_empty() {
            (self.begin, self.end) = (0, 0);
        }
    }

    /// Returns memory for at least `count` more bytes. [`Buffer::fill`] says how many of them were written.
    pub fn room(&mut self, count: usize) -> &mut [u8] {
        if self.bytes.len() < self.end + count {
            self.bytes.resize(self.end + count, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// The first bytes of the room were written.
    pub fn fill(&mut self, count: usize) {
        self.end += count;
    }

    /// Adds bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.fill(bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_gives_what_was_put_in_and_begins_anew_when_it_is_empty() {
        let mut buffer = Buffer::default();
        for round in 0..3u8 {
            buffer.push(&[round, 1, 2]);
            buffer.advance(2);
            buffer.push(&[3]);
            assert_eq!(buffer.rest(), [2, 3]);
            buffer.advance(2);
            assert!(buffer.is_empty() && buffer.begin == 0 && buffer.bytes.len() <= 4);
        }
    }
}
