//! Calls of every collective in every form.

use super::*;

/// The parameters of a call. Fields that the collective does not have are ignored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Elements of a buffer, or of a block; 0 for blocks of uneven lengths where the collective allows them.
    pub elements: usize,
    /// Number of inputs; the root's, if the root has a different number.
    pub inputs: usize,
    pub outputs: usize,
    pub root: usize,
    pub average: bool,
    pub base: usize,
    /// The number of the groups, grid or links to use, below [`TOPOLOGIES`].
    pub topology: usize,
}

/// Number of variants of groups, grids and links.
pub(super) const TOPOLOGIES: usize = 8;

/// A call in one of its forms.
#[derive(Debug)]
pub(super) struct Sample {
    calls: Calls,
    uses: Uses,
}

/// Whether each rank's block may have its own length.
fn has_uneven_blocks(collective: Collective) -> bool {
    use Collective::*;
    matches!(collective, ReduceScatter | Allgatherv | Gatherv | Scatterv | Alltoallv)
}

/// Whether a buffer is not divided into one block per rank.
pub(super) fn has_whole_buffers(collective: Collective) -> bool {
    use Collective::*;
    matches!(collective, Allreduce | Reduce | Broadcast | Scan | Exscan)
}

/// Every form that a call of `algorithm` can have.
pub(super) fn forms(collective: Collective, algorithm: &Algorithm, size: usize) -> Vec<Form> {
    use Collective::*;
    let buffers: &[(usize, usize)] = match collective {
        Allreduce => &[(1, 1), (0, 1), (2, 1), (3, 2), (1, 3), (0, 2), (0, 3)],
        Reduce | ReduceScatter | Allgather => &[(1, 1), (0, 1), (2, 1), (3, 1)],
        Broadcast => &[(1, 1), (0, 1), (0, 3), (1, 2), (1, 0)],
        Scatter => &[(1, 1), (0, 1), (size, 1)],
        Allgatherv | Gather | Gatherv | Scatterv | Alltoall | Scan | Exscan => &[(1, 1), (0, 1)],
        Alltoallv | PairwiseExchange => &[(1, 1)],
        Barrier => &[(0, 0)],
    };
    // The forms in which all ranks have different data come last.
    let elements = match collective {
        Barrier => vec![0],
        _ if has_whole_buffers(collective) => vec![0, 1, size - 1, size, 3 * size - 1, 2 * size + 1],
        _ if has_uneven_blocks(collective) => vec![2, 0],
        _ => vec![0, 1, 3],
    };
    let roots = match collective {
        Reduce | Broadcast | Gather | Gatherv | Scatter | Scatterv => roots(size),
        Barrier => roots(size),
        _ => vec![0],
    };
    let topology = if matches!(algorithm.uses, Uses::Groups | Uses::Links) { TOPOLOGIES } else { 1 };
    let mut forms = Vec::new();
    for &elements in &elements {
        for &(inputs, outputs) in buffers {
            for &root in &roots {
                for topology in 0..topology {
                    let average = (forms.len() + size).is_multiple_of(2);
                    let base = [2, 3, 4, 8][(forms.len() + size) % 4];
                    forms.push(Form { elements, inputs, outputs, root, average, base, topology });
                }
            }
        }
    }
    forms
}

/// Whether `form` has the last entry of `forms`' list of elements: no part of a buffer is empty, and not all are equal.
pub(super) fn is_full(collective: Collective, size: usize, form: &Form) -> bool {
    match collective {
        Collective::Barrier => true,
        _ if has_whole_buffers(collective) => form.elements > size,
        _ if has_uneven_blocks(collective) => form.elements == 0,
        _ => form.elements == 3,
    }
}

impl Sample {
    /// `None` if the collective does not support this number of ranks.
    pub fn new(collective: Collective, algorithm: &Algorithm, size: usize, form: Form) -> Option<Self> {
        use Collective::*;
        let one_only = collective == Allreduce && algorithm.name == "local";
        if (one_only && size > 1) || (collective == PairwiseExchange && !size.is_power_of_two()) {
            return None;
        }
        let row = |seed| match form.elements {
            0 => uneven(size, seed),
            elements => vec![elements; size],
        };
        let mut calls = match collective {
            Alltoallv => Calls::of_rows((0..size).map(|rank| row(3 * rank)).collect()),
            _ if has_uneven_blocks(collective) => Calls::of_blocks(collective, row(size), form.root),
            _ => Calls::of_count(collective, size, form.elements, form.root),
        };
        (calls.inputs, calls.outputs, calls.base) = (form.inputs, form.outputs, form.base);
        calls.average = form.average && matches!(collective, Allreduce | Reduce | ReduceScatter);
        match algorithm.uses {
            Uses::Groups => set_topology(&mut calls, form.topology),
            Uses::Links => calls.links = links(size, form.topology),
            Uses::SharedMemory | Uses::Domains => calls.shared = true,
            Uses::Sizes | Uses::Counts => {}
        }
        Some(Self { calls, uses: algorithm.uses })
    }

    /// The shapes of all ranks.
    pub fn shapes(&self) -> Vec<Shape<'_>> {
        needed(&self.calls, self.uses)
    }
}

/// The shapes of all ranks, with only the fields that an algorithm with `uses` needs.
pub(super) fn needed(calls: &Calls, uses: Uses) -> Vec<Shape<'_>> {
    use Collective::*;
    let mut shapes = calls.shapes();
    for shape in &mut shapes {
        if uses != Uses::Counts {
            shape.counts = &[];
        }
        match (shape.collective, shape.rank == shape.root) {
            // If the call is not in place, non-root ranks may or may not have an output.
            (Reduce, false) if calls.inputs > 0 => shape.outputs = shape.rank % 2,
            // Only the root has the counts, which include its own.
            (Gatherv | Scatterv, true) => shape.count = usize::MAX,
            (Gatherv | Scatterv, false) => (shape.send_counts, shape.recv_counts) = (&[], &[]),
            _ => {}
        }
    }
    shapes
}

/// Gives the ranks groups or a grid.
fn set_topology(calls: &mut Calls, kind: usize) {
    let size = calls.ranks();
    let groups = |of: fn(usize, usize) -> usize| (0..size).map(|rank| of(rank, size) as u32).collect();
    match kind {
        0 => calls.groups = groups(|rank, _| rank / 4),
        1 => calls.groups = groups(|rank, size| rank % (size / 3 + 1)),
        2 => calls.groups = groups(|rank, _| rank.isqrt()),
        3 => {
            let short = (1..=size.isqrt()).rev().find(|short| size.is_multiple_of(*short)).expect("1 divides it");
            calls.dims = vec![size / short, short];
        }
        4 => calls.groups = groups(|rank, size| size - rank),
        6 => (calls.groups, calls.shared) = (groups(|rank, _| rank / 4), true),
        7 => (calls.groups, calls.shared) = (groups(|rank, size| rank % (size / 3 + 1)), true),
        _ => {}
    }
}

/// Links that connect all ranks in both directions.
fn links(size: usize, kind: usize) -> Vec<u32> {
    let of = |bandwidth: fn(usize, usize, usize) -> u32| {
        let pairs = (0..size * size).map(|pair| (pair / size, pair % size));
        pairs.map(|(from, to)| bandwidth(from.max(to), from.min(to), size)).collect::<Vec<u32>>()
    };
    match kind {
        0 => Vec::new(),
        1 => of(|_, _, _| 3),
        2 => of(|high, low, _| if (high, low) == (1, 0) { 1 } else { 20 }),
        3 => of(|high, low, size| u32::from(high - low == 1 || high - low == size - 1)),
        4 => of(|high, low, size| if (2 * high < size) == (2 * low < size) { 100 } else { 7 }),
        _ => of(|high, low, _| (high * 7 + low * 13) as u32 % 11 + 1),
    }
}
