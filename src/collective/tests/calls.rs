//! Calls of every collective in every form.

use super::*;

/// What a call is like. What its collective does not have is left alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Of a whole buffer, or of one block; 0 for blocks of uneven lengths, where a collective can have them.
    pub elements: usize,
    /// Of the root, where it has others than the rest.
    pub inputs: usize,
    pub outputs: usize,
    pub root: usize,
    pub average: bool,
    pub base: usize,
    /// Which groups, grids or links the ranks have: below [`PLACES`].
    pub places: usize,
}

/// Kinds of groups, grids and links.
pub(super) const PLACES: usize = 6;

/// A call in one of its forms.
#[derive(Debug)]
pub(super) struct Sample {
    calls: Calls,
    uses: Uses,
}

/// Whether each rank's part may have a length of its own.
fn has_uneven_blocks(collective: Collective) -> bool {
    use Collective::*;
    matches!(collective, ReduceScatter | Allgatherv | Gatherv | Scatterv | Alltoallv)
}

/// Whether the buffers are not made of blocks, one for each rank.
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
    // The ones that make all ranks' parts different come last.
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
    let places = if matches!(algorithm.uses, Uses::Groups | Uses::Links) { PLACES } else { 1 };
    let mut forms = Vec::new();
    for &elements in &elements {
        for &(inputs, outputs) in buffers {
            for &root in &roots {
                for places in 0..places {
                    let average = (forms.len() + size).is_multiple_of(2);
                    let base = [2, 3, 4, 8][(forms.len() + size) % 4];
                    forms.push(Form { elements, inputs, outputs, root, average, base, places });
                }
            }
        }
    }
    forms
}

/// Elements that `forms` has last: with them all parts of a buffer are there, and not all are alike.
pub(super) fn is_full(collective: Collective, size: usize, form: &Form) -> bool {
    match collective {
        Collective::Barrier => true,
        _ if has_whole_buffers(collective) => form.elements > size,
        _ if has_uneven_blocks(collective) => form.elements == 0,
        _ => form.elements == 3,
    }
}

impl Sample {
    /// `None` if the collective cannot have so many ranks.
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
            Uses::Groups => place(&mut calls, form.places),
            Uses::Links => calls.links = links(size, form.places),
            Uses::Sizes | Uses::Counts => {}
        }
        Some(Self { calls, uses: algorithm.uses })
    }

    /// The shapes of all ranks.
    pub fn shapes(&self) -> Vec<Shape<'_>> {
        needed(&self.calls, self.uses)
    }
}

/// The shapes of all ranks, which know no more than they must for an algorithm that `uses` so much.
pub(super) fn needed(calls: &Calls, uses: Uses) -> Vec<Shape<'_>> {
    use Collective::*;
    let mut shapes = calls.shapes();
    for shape in &mut shapes {
        if uses != Uses::Counts {
            shape.counts = &[];
        }
        match (shape.collective, shape.rank == shape.root) {
            // Not in place, other ranks than the root may have an output or not.
            (Reduce, false) if calls.inputs > 0 => shape.outputs = shape.rank % 2,
            // The root's own is in its counts, which nobody else has.
            (Gatherv | Scatterv, true) => shape.count = usize::MAX,
            (Gatherv | Scatterv, false) => (shape.send_counts, shape.recv_counts) = (&[], &[]),
            _ => {}
        }
    }
    shapes
}

/// Gives the ranks groups or a grid.
fn place(calls: &mut Calls, kind: usize) {
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
        _ => {}
    }
}

/// Links between ranks, of all of which messages can find a way both ways.
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
