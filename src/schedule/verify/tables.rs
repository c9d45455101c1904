//! The publication tables of all ranks, and which steps fetch what is there.

use crate::schedule::{Action, Readers, Step};
use crate::types::Rank;

/// A publication.
pub(super) struct Publication {
    pub step: u32,
    pub to: Readers,
    pub elements: u32,
    /// The steps that fetch it, with the first and the end of the elements that each of them reads.
    pub fetches: Vec<(u32, u32, u32)>,
}

/// A fetch of which the publication has not been found yet.
pub(super) struct Fetch {
    pub step: u32,
    pub from: Rank,
    pub publication: u32,
    pub at: usize,
    pub elements: usize,
}

/// The publication tables of all ranks.
#[derive(Default)]
pub(super) struct Tables {
    /// The publications of each rank, in order.
    pub publications: Vec<Vec<Publication>>,
    pub fetches: Vec<Fetch>,
    /// Each rank's steps that wait for its readers.
    pub awaits: Vec<Vec<u32>>,
    /// The steps of other ranks that must be done before each step: all lists concatenated, and where each begins.
    pub across: Vec<u32>,
    pub first: Vec<u32>,
    /// Each step on shared memory with the one before it of the same rank.
    order: Vec<(u32, u32)>,
    /// Fetches, each with the steps that other readers of the same publication must have done; see [`Tables::abreast`].
    pub abreast: Vec<(u32, u32)>,
    /// The rank and the step that were added last.
    last: Option<(Rank, u32)>,
}

impl Tables {
    pub fn new(ranks: usize) -> Self {
        let publications = (0..ranks).map(|_| Vec::new()).collect();
        Self { publications, awaits: vec![Vec::new(); ranks], ..Self::default() }
    }

    /// Adds the next step of `rank`; other steps than those on shared memory are ignored.
    pub fn add(&mut self, rank: Rank, index: u32, step: &Step) -> Result<(), String> {
        let elements = step.action.elements();
        if step.action.is_shared() {
            let earlier = self.last.replace((rank, index)).filter(|(of, _)| *of == rank);
            self.order.extend(earlier.map(|(_, earlier)| (index, earlier)));
        }
        match step.action {
            Action::Publish { to, .. } => {
                let next = self.publications[rank].len() as u32;
                if step.channel != next {
                    return Err(format!("publication {} where {next} is next", step.channel));
                }
                let (elements, fetches) = (elements as u32, Vec::new());
                self.publications[rank].push(Publication { step: index, to, elements, fetches });
            }
            Action::AwaitReaders => self.awaits[rank].push(index),
            action => {
                let fetch = |(from, publication, at)| Fetch { step: index, from, publication, at, elements };
                self.fetches.extend(action.publication().map(fetch));
            }
        }
        Ok(())
    }

    /// The steps of other ranks that must be done before step `index`: the publication that it fetches, or the fetches
    /// for which it waits.
    pub fn across(&self, index: usize) -> &[u32] {
        let Some(range) = self.first.get(index..index + 2) else { return &[] };
        &self.across[range[0] as usize..range[1] as usize]
    }

    /// The step on shared memory before step `index` on its rank, if that is one, too. The engine may execute them one
    /// after the other, so none may wait, through other ranks, for a later one.
    pub fn previous(&self, index: usize) -> Option<u32> {
        let found = self.order.binary_search_by_key(&(index as u32), |&(step, _)| step).ok()?;
        Some(self.order[found].1)
    }

    /// The steps of other ranks that must be done so that these, too, can read the publication that step `index`
    /// fetches: it may be written piece by piece, as fast as all of them read. Readers begin with a fetch as soon as
    /// what is before it is done.
    pub fn abreast(&self, index: usize) -> impl Iterator<Item = u32> {
        let first = self.abreast.partition_point(|(step, _)| (*step as usize) < index);
        self.abreast[first..].iter().take_while(move |(step, _)| *step as usize == index).map(|(_, earlier)| *earlier)
    }
}
