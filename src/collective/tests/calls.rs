//! Calls of every collective in every form: the shapes of all ranks, made in one place.

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

/// A call, and what the shapes of its ranks point to.
#[derive(Debug)]
pub(super) struct Sample {
    collective: Collective,
    size: usize,
    form: Form,
    /// By rank: what it sends to each rank.
    sent: Vec<Vec<usize>>,
    received: Vec<Vec<usize>>,
    counts: Vec<usize>,
    groups: Vec<u32>,
    dims: Vec<usize>,
    links: Vec<u32>,
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
        let none = Vec::new();
        let sent: Vec<Vec<usize>> = match collective {
            Scatterv => (0..size).map(|rank| if rank == form.root { row(size) } else { none.clone() }).collect(),
            Alltoallv => (0..size).map(|rank| row(3 * rank)).collect(),
            _ => vec![none.clone(); size],
        };
        let received: Vec<Vec<usize>> = match collective {
            Gatherv => (0..size).map(|rank| if rank == form.root { row(size) } else { none.clone() }).collect(),
            ReduceScatter | Allgatherv => vec![row(size); size],
            Alltoallv => (0..size).map(|rank| sent.iter().map(|row| row[rank]).collect()).collect(),
            _ => vec![none.clone(); size],
        };
        let counts = match collective {
            Gatherv => received[form.root].clone(),
            Scatterv | Alltoallv => sent.concat(),
            _ => none,
        };
        let mut sample = Self {
            collective,
            size,
            form,
            sent,
            received,
            counts: if algorithm.uses == Uses::Counts { counts } else { Vec::new() },
            groups: Vec::new(),
            dims: Vec::new(),
            links: Vec::new(),
        };
        match algorithm.uses {
            Uses::Groups => sample.place(),
            Uses::Links => sample.links = links(size, form.places),
            Uses::Sizes | Uses::Counts => {}
        }
        Some(sample)
    }

    /// Groups or a grid.
    fn place(&mut self) {
        let size = self.size;
        let groups = |of: fn(usize, usize) -> usize| (0..size).map(|rank| of(rank, size) as u32).collect();
        match self.form.places {
            0 => self.groups = groups(|rank, _| rank / 4),
            1 => self.groups = groups(|rank, size| rank % (size / 3 + 1)),
            2 => self.groups = groups(|rank, _| rank.isqrt()),
            3 => {
                let short = (1..=size.isqrt()).rev().find(|short| size.is_multiple_of(*short)).expect("1 divides it");
                self.dims = vec![size / short, short];
            }
            4 => self.groups = groups(|rank, size| size - rank),
            _ => {}
        }
    }

    /// The shapes of all ranks.
    pub fn shapes(&self) -> Vec<Shape<'_>> {
        use Collective::*;
        let Form { elements, inputs, outputs, root, average, base, .. } = self.form;
        let destinations = if self.collective == PairwiseExchange { self.size.ilog2() as usize } else { 0 };
        let average = average && matches!(self.collective, Allreduce | Reduce | ReduceScatter);
        let count = if has_uneven_blocks(self.collective) { 0 } else { elements };
        let call =
            Shape { inputs, outputs, root, average, base, destinations, ..shape(self.collective, self.size, count) };
        let mut shapes = everyone(call, |s| {
            let is_root = s.rank == root;
            (s.inputs, s.outputs) = match self.collective {
                // Not in place, other ranks than the root may have an output or not.
                Reduce if !is_root && inputs > 0 => (inputs, s.rank % 2),
                Broadcast if !is_root => (0, outputs.max(1)),
                Gather | Gatherv if !is_root => (1, 0),
                Scatter | Scatterv if !is_root => (0, 1),
                Barrier => (0, 0),
                _ => (inputs, outputs),
            };
            let roots_counts = match self.collective {
                Gatherv => &self.received[root],
                Scatterv => &self.sent[root],
                _ => return,
            };
            // The root's own is in its counts.
            s.count = if is_root { usize::MAX } else { roots_counts[s.rank] };
        });
        for shape in &mut shapes {
            (shape.send_counts, shape.recv_counts) = (&self.sent[shape.rank], &self.received[shape.rank]);
            (shape.counts, shape.groups) = (&self.counts, &self.groups);
            (shape.dims, shape.links) = (&self.dims, &self.links);
        }
        shapes
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
