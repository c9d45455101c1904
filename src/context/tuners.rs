//! The tuners of a context, which select the algorithms of its calls: by what the ranks have agreed on, as soon as they
//! have.

use std::sync::OnceLock;

use crate::engine::plan::MAX_RANKS;
use crate::engine::shared::program::MAX_ELEMENT_BYTES;
use crate::transport::Sharing;
use crate::tuner::Tuner;
use crate::tuner::overrides::Overrides;

/// The tuners of a context.
pub(super) struct Tuners {
    size: usize,
    max_segment_bytes: usize,
    /// Tuning variables of this rank's environment; only rank 0's are used.
    pub own_overrides: Overrides,
    /// The tuning that all ranks agreed on when they connected.
    agreed: OnceLock<Tuner>,
    /// The tuning of `agreed` for ranks that share no memory. Where ranks share memory but may not read each other's
    /// processes, it selects the algorithms of calls that would need such reads.
    without_shared_memory: OnceLock<Tuner>,
    /// Used if the context was connected by pairs, without an agreement.
    built_in: OnceLock<Tuner>,
}

impl Tuners {
    /// Those of a context of `size` ranks that have not agreed yet.
    pub fn new(size: usize, max_segment_bytes: usize, own_overrides: Overrides) -> Self {
        Self {
            size,
            max_segment_bytes,
            own_overrides,
            agreed: OnceLock::new(),
            without_shared_memory: OnceLock::new(),
            built_in: OnceLock::new(),
        }
    }

    /// The one that selects algorithms.
    pub fn current(&self) -> &Tuner {
        // With more ranks every call is refused, so the tuner does not matter.
        let size = if self.size <= MAX_RANKS { self.size } else { 1 };
        let built_in = || Tuner::built_in(size, self.max_segment_bytes);
        self.agreed.get().unwrap_or_else(|| self.built_in.get_or_init(built_in))
    }

    /// The one that selects algorithms for calls with elements of so many bytes.
    pub fn for_elements(&self, bytes: usize) -> &Tuner {
        let without = || self.without_shared_memory.get().filter(|_| bytes > MAX_ELEMENT_BYTES);
        without().unwrap_or_else(|| self.current())
    }

    /// The one that the ranks have agreed on.
    pub fn agreed(&self) -> Option<&Tuner> {
        self.agreed.get()
    }

    /// Uses `tuner` from now on, unless a tuner was agreed on before. `sharing`: what the ranks of each host share.
    pub fn agree(&self, tuner: Tuner, sharing: Sharing) {
        if sharing == Sharing::Segments {
            let without = tuner.inherit(self.max_segment_bytes).with_shared_memory(false, Vec::new());
            let _ = self.without_shared_memory.set(without);
        }
        let _ = self.agreed.set(tuner);
    }
}
