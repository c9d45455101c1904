//! Where decrypted bytes go.

use std::io::IoSliceMut;

/// Where decrypted bytes go, which exist for the time of a call.
pub(super) trait Sink {
    /// Takes bytes from the front, and returns their number.
    fn take(&mut self, bytes: &[u8]) -> usize;
    /// Whether it wants no more.
    fn is_full(&self) -> bool;
}

/// Copies them.
#[derive(Default)]
pub(super) struct Parts<'a, 'b> {
    pub parts: &'a mut [IoSliceMut<'b>],
    /// The next byte's place: in which part, and where there.
    pub index: usize,
    pub at: usize,
}

impl Sink for Parts<'_, '_> {
    fn take(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() && !self.is_full() {
            let room = &mut self.parts[self.index][self.at..];
            let count = room.len().min(bytes.len() - taken);
            room[..count].copy_from_slice(&bytes[taken..taken + count]);
            (taken, self.at) = (taken + count, self.at + count);
            if self.at == self.parts[self.index].len() {
                (self.index, self.at) = (self.index + 1, 0);
            }
        }
        taken
    }

    fn is_full(&self) -> bool {
        self.index == self.parts.len()
    }
}

/// Passes them to a function, until it returns false.
pub(super) struct InPlace<'a> {
    pub take: &'a mut dyn FnMut(&[u8]) -> bool,
    pub full: bool,
}

impl Sink for InPlace<'_> {
    fn take(&mut self, bytes: &[u8]) -> usize {
        if self.full {
            return 0;
        }
        self.full = !(self.take)(bytes);
        bytes.len()
    }

    fn is_full(&self) -> bool {
        self.full
    }
}
