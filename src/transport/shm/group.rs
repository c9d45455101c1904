//! The ranks of a context on one host that share memory.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::Processes;
use super::allocations::Views;
use super::ptracer;
use super::segment::{self, Lane, OwnSegment, PeerSegment, Secret};
use crate::error::{Error, Result};
use crate::publications::{Members, all_but, each};
use crate::sys::process::Descriptor;
use crate::sys::shared_memory::{Mapping, SharedMemory};
use crate::sys::{ForkMark, RawSocket};
use crate::transport::local::{InPlace, LocalRanks, MESSAGES, PUBLICATIONS, STARTED, Waiting};
use crate::types::Rank;

/// Another rank of the group, as its address says.
pub struct Candidate {
    /// The candidate's rank in the context.
    pub rank: Rank,
    /// Where its segment is.
    pub segment: Descriptor,
    /// What the segment must contain.
    pub secret: Secret,
}

/// A rank of a group.
struct Member {
    rank: u32,
    /// The member's segment; `None` for this rank.
    segment: Option<PeerSegment>,
    /// What is mapped of its allocations.
    views: Views,
}

/// The ranks of a context on this host that share memory, this one included. All of them have the same group.
pub struct HostGroup {
    members: Box<[Member]>,
    ranks: Box<[u32]>,
    index: usize,
    /// The members but this rank, of those that may publish.
    others: Members,
    own: Arc<OwnSegment>,
    mapping: Mapping,
    reads_memory: bool,
    /// Why this rank cannot read the memory of another's process, if so.
    unreadable: Option<String>,
    shares_cores: bool,
    mark: Arc<ForkMark>,
}

impl HostGroup {
    /// Opens the memory of all `others` of this host for `rank`, which has the segment `own` in `memory`, and whose
    /// device watches `processes`. [`HostGroup::reads_memory`] then says what this rank has found. The group can be
    /// used after all ranks have succeeded in this, and after [`HostGroup::confirm`]; then nobody opens `memory` any
    /// more.
    pub fn open(
        rank: Rank,
        own: Arc<OwnSegment>,
        memory: &SharedMemory,
        others: &[Candidate],
        processes: &Processes,
        shares_cores: bool,
    ) -> Result<Self> {
        let failed = |e| Error::io("cannot share memory", &e);
        let count = others.len() + 1;
        let mapping = segment::map(memory, count).map_err(failed)?;
        let mut members = vec![Member { rank: rank as u32, segment: None, views: Views::default() }];
        let mut unreadable = None;
        let mut opened = HashMap::new();
        for Candidate { rank, segment, secret } in others {
            let nth = opened.entry(segment.process).and_modify(|before| *before += 1).or_insert(0);
            let segment = PeerSegment::open(*segment, secret, count, |process| processes.open(process, *nth))
                .map_err(|e| e.context(format_args!("cannot share memory with rank {rank}")).with_rank(*rank))?;
            if let Err(e) = segment.try_reading(secret) {
                unreadable.get_or_insert_with(|| ptracer::why_unreadable(&e));
            }
            members.push(Member { rank: *rank as u32, segment: Some(segment), views: Views::default() });
        }
        members.sort_unstable_by_key(|member| member.rank);
        let ranks: Box<[u32]> = members.iter().map(|member| member.rank).collect();
        let index = ranks.iter().position(|r| *r as usize == rank).expect("pushed above");
        let mark = Arc::new(ForkMark::new().map_err(failed)?);
        Ok(Self {
            others: all_but(index, count),
            members: members.into(),
            ranks,
            index,
            own,
            mapping,
            reads_memory: unreadable.is_none(),
            unreadable,
            shares_cores,
            mark,
        })
    }

    /// All ranks have opened each other's memory; `reads_memory`: and can read the memory of each other's process.
    /// `named`: the numbers of ranks in errors.
    pub fn confirm(mut self, reads_memory: bool, named: &dyn Fn(Rank) -> Rank) -> Result<Arc<Self>> {
        for Member { rank, segment, .. } in &mut self.members {
            if let Some(segment) = segment {
                let rank = *rank as Rank;
                segment.check_size().map_err(|e| e.context(format_args!("rank {}", named(rank))).with_rank(rank))?;
            }
        }
        self.reads_memory = reads_memory;
        Ok(Arc::new(self))
    }

    /// Groups of `members` ranks that are threads of this process.
    #[cfg(any(test, fuzzing))]
    pub fn in_process(members: usize) -> Vec<Arc<Self>> {
        let opened = Self::open_in_process(members);
        let reads = opened.iter().all(Self::reads_memory);
        opened.into_iter().map(|group| group.confirm(reads, &|rank| rank).unwrap()).collect()
    }

    /// Like [`HostGroup::in_process`], where no process may read another's memory.
    #[cfg(test)]
    pub fn in_process_without_reads(members: usize) -> Vec<Arc<Self>> {
        Self::open_in_process(members).into_iter().map(|group| group.confirm(false, &|rank| rank).unwrap()).collect()
    }

    #[cfg(any(test, fuzzing))]
    fn open_in_process(members: usize) -> Vec<Self> {
        let secret = |rank: usize| [rank as u8 + 1; size_of::<Secret>()];
        let own: Vec<_> = (0..members).map(|rank| OwnSegment::create(&secret(rank)).unwrap()).collect();
        let (own, memory): (Vec<_>, Vec<_>) = own.into_iter().map(|(own, memory)| (Arc::new(own), memory)).unzip();
        let candidate = |rank| Candidate { rank, segment: memory[rank].descriptor(), secret: secret(rank) };
        let processes = Processes::default();
        let open = |rank: usize| {
            let others: Vec<_> = (0..members).filter(|other| *other != rank).map(candidate).collect();
            Self::open(rank, own[rank].clone(), &memory[rank], &others, &processes, false).unwrap()
        };
        (0..members).map(open).collect()
    }

    /// What this rank allocates for the others.
    #[cfg(test)]
    pub fn allocations(&self) -> super::Allocations {
        super::Allocations::new(Some(self.own.clone()))
    }

    /// The table of what this rank has allocated.
    #[cfg(all(test, not(any(miri, loom))))]
    pub(super) fn own_table(&self) -> &super::listing::Table {
        self.own.allocations()
    }

    /// Why this rank cannot read the memory of another's process, if so.
    pub fn unreadable(&self) -> Option<&str> {
        self.unreadable.as_deref()
    }

    /// Wakes the member at `index` if it waits for [`MESSAGES`], after one was sent to it, or received from it.
    #[inline]
    pub(super) fn wake(&self, index: usize) {
        if let Some(peer) = self.peer(index) {
            fence(Ordering::SeqCst);
            peer.wake(&self.own, self.index, MESSAGES);
        }
    }

    /// Makes [`HostGroup::doorbell`] unreadable until a member rings again. Look for all events afterwards. A system
    /// call.
    pub fn clear_doorbell(&self) {
        self.own.clear_doorbell();
    }

    /// What this rank writes for the link to the member at `index`.
    pub(super) fn own_lane(&self, index: usize) -> &Lane {
        // SAFETY: the mapping lives as long as the group; any bytes are a valid lane, and it consists of what may
        // change at any time.
        unsafe { &*segment::lane(&self.mapping, index) }
    }

    /// What the member at `index`, another rank, writes for the link to this one.
    pub(super) fn lane(&self, index: usize) -> &Lane {
        let mapping = self.peer(index).map_or(&self.mapping, PeerSegment::mapping);
        // SAFETY: as above; `confirm` has checked that the member's segment contains all lanes.
        unsafe { &*segment::lane(mapping, self.index) }
    }

    /// The number of the process of the member at `index`.
    pub fn process_id(&self, index: usize) -> u32 {
        self.peer(index).map_or_else(std::process::id, PeerSegment::process_id)
    }

    /// The descriptor that is readable when a member has woken this rank.
    pub fn doorbell(&self) -> RawSocket {
        self.own.doorbell()
    }

    /// Whether the process of the member at `index` has ended. A system call.
    pub fn has_exited(&self, index: usize) -> bool {
        self.peer(index).is_some_and(PeerSegment::has_exited)
    }

    /// The descriptor that is readable when the process of the member at `index` has ended; none if it is this process.
    pub fn process(&self, index: usize) -> Option<RawSocket> {
        self.peer(index).and_then(PeerSegment::process)
    }

    /// Whether this process inherited the group by fork. Then nothing may be written.
    pub fn is_inherited(&self) -> bool {
        self.mark.is_child()
    }

    /// The segment of the member at `index`, unless it is this rank.
    fn peer(&self, index: usize) -> Option<&PeerSegment> {
        self.members[index].segment.as_ref()
    }
}

impl LocalRanks for HostGroup {
    fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    fn index(&self) -> usize {
        self.index
    }

    fn reads_memory(&self) -> bool {
        self.reads_memory
    }

    fn shares_cores(&self) -> bool {
        self.shares_cores
    }

    fn waiting(&self) -> &Waiting {
        self.own.waiting()
    }

    fn wake_members(&self, members: Members) {
        fence(Ordering::SeqCst);
        for peer in each(members & self.others).filter_map(|index| self.peer(index)) {
            peer.wake(&self.own, self.index, PUBLICATIONS | STARTED);
        }
    }

    fn wake_self(&self) {
        self.own.ring();
    }

    fn in_place(&self, index: usize, address: u64, bytes: usize) -> Option<InPlace> {
        let Member { segment, views, .. } = &self.members[index];
        views.find(segment.as_ref()?, address, bytes)
    }

    fn has_allocated(&self, from: *const u8, bytes: usize) -> bool {
        self.own.allocations().contains(from.addr() as u64, bytes as u64)
    }

    unsafe fn read_memory(&self, index: usize, address: u64, into: *mut u8, bytes: usize) -> io::Result<()> {
        if let Some(here) = self.in_place(index, address, bytes) {
            // SAFETY: the caller guarantees that `into` is valid, and `here` has so many bytes. A member that changes
            // them meanwhile can only change what is copied.
            unsafe { std::ptr::copy_nonoverlapping(here.start(), into, bytes) };
            return Ok(());
        }
        match self.peer(index) {
            // SAFETY: the caller guarantees that `into` is valid.
            Some(peer) => unsafe { peer.read_memory(address, into, bytes) },
            None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    #[cfg(test)]
    fn own_memory(&self) -> (*mut u8, usize) {
        (self.mapping.start(), self.mapping.bytes())
    }

    #[cfg(test)]
    fn mapped(&self, index: usize) -> usize {
        self.members[index].views.mapped()
    }

    fn table(&self, index: usize) -> *mut u8 {
        segment::table(self.peer(index).map_or(&self.mapping, PeerSegment::mapping))
    }

    fn mark(&self) -> &Arc<ForkMark> {
        &self.mark
    }

    fn why_unreadable(&self, error: &io::Error) -> String {
        ptracer::why_unreadable(error)
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::sys::{self, Pollable, process};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    #[test]
    fn members_read_what_each_has_written() {
        let groups = HostGroup::in_process(3);
        for (index, group) in groups.iter().enumerate() {
            assert_eq!((group.ranks(), group.index()), (&[0, 1, 2][..], index));
            assert_eq!((group.index_of(2), group.index_of(3)), (Some(2), None));
            assert_eq!(group.table(index).addr() % 4096, 0);
            // SAFETY: the table is longer, aligned, and accessed by atomics only.
            unsafe { (*group.table(index).cast::<AtomicU32>()).store(10 + index as u32, Ordering::Relaxed) };
        }
        for group in &groups {
            for index in 0..3 {
                // SAFETY: as above.
                let seen = unsafe { (*group.table(index).cast::<AtomicU32>()).load(Ordering::Relaxed) };
                assert_eq!(seen, 10 + index as u32);
            }
        }
    }

    #[test]
    fn a_member_that_sleeps_is_woken_and_one_that_polls_is_not() {
        let groups = HostGroup::in_process(2);
        let rung = || sys::poll(&[Pollable::Socket(groups[1].doorbell())], Duration::ZERO);
        groups[0].wake_members(Members::MAX);
        assert!(!rung());
        groups[1].waiting().begin(PUBLICATIONS);
        groups[0].wake_members(Members::MAX);
        groups[0].wake_members(Members::MAX);
        assert!(rung() && !sys::poll(&[Pollable::Socket(groups[0].doorbell())], Duration::ZERO));
        groups[1].waiting().end(PUBLICATIONS);
        groups[1].clear_doorbell();
        assert!(!rung());
        groups[0].wake_members(Members::MAX);
        assert!(!rung());
        groups[0].wake(1);
        assert!(rung(), "a new rank waits for messages");
        groups[1].waiting().end(MESSAGES);
        groups[1].clear_doorbell();
        groups[0].wake(1);
        assert!(!rung());
    }

    #[test]
    fn a_member_that_sleeps_is_woken_only_by_those_for_which_it_waits() {
        let groups = HostGroup::in_process(4);
        let rung = |index: usize| sys::poll(&[Pollable::Socket(groups[index].doorbell())], Duration::ZERO);
        let waiting = groups[0].waiting();
        waiting.wait_only_for(1 << 2);
        waiting.begin(PUBLICATIONS);
        groups[1].wake_members(Members::MAX);
        groups[2].wake_members(Members::MAX & !1);
        assert!(!rung(0));
        groups[2].wake_members(1);
        assert!(rung(0) && (1..4).all(|index| !rung(index)));
        groups[0].clear_doorbell();
        groups[3].wake_members(1);
        assert!(!rung(0));
        waiting.wait_also_for(1 << 3);
        groups[3].wake_members(1);
        assert!(rung(0));
        groups[0].clear_doorbell();
        waiting.wait_only_for(0);
        groups[1].wake(0);
        assert!(rung(0), "it waits for messages of all");
        groups[0].clear_doorbell();
        waiting.begin(STARTED);
        groups[1].wake_members(1);
        assert!(rung(0), "calls for which no thread waits need publications of all");
    }

    #[test]
    fn the_memory_of_a_member_is_read() {
        let groups = HostGroup::in_process(2);
        assert!(!groups[0].has_exited(1));
        if !process::may_read_memory() {
            return;
        }
        assert!(groups[0].reads_memory());
        let (data, mut into) = ([5u8, 6, 7], [0u8; 3]);
        // SAFETY: `into` has three bytes.
        unsafe { groups[0].read_memory(1, data.as_ptr() as u64, into.as_mut_ptr(), 3) }.unwrap();
        assert_eq!(into, data);
    }

    /// Two segments, with secrets of ones and of twos.
    fn two() -> [(Arc<OwnSegment>, SharedMemory); 2] {
        [1, 2].map(|byte| OwnSegment::create(&[byte; 32]).map(|(own, memory)| (Arc::new(own), memory)).unwrap())
    }

    #[test]
    fn the_memory_of_another_context_is_refused() {
        let [(one, memory), (other, theirs)] = two();
        let refused = |segment: Descriptor, secret: u8| {
            let others = [Candidate { rank: 4, segment, secret: [secret; 32] }];
            HostGroup::open(0, one.clone(), &memory, &others, &Processes::default(), false)
                .map(|_| ())
                .unwrap_err()
                .message()
                .to_owned()
        };
        let text = refused(theirs.descriptor(), 1);
        assert!(text.contains("with rank 4") && text.contains("another context"), "{text}");
        let text = refused(Descriptor { number: other.doorbell() as u32, ..theirs.descriptor() }, 2);
        assert!(text.contains("is no shared memory"), "{text}");
        let text = refused(Descriptor { number: 1_000_000, ..theirs.descriptor() }, 2);
        assert!(text.contains("cannot open its memory"), "{text}");
    }

    #[test]
    fn a_segment_that_has_not_grown_is_refused() {
        let [(one, memory), (_other, theirs)] = two();
        let others = [Candidate { rank: 1, segment: theirs.descriptor(), secret: [2; 32] }];
        let group = HostGroup::open(0, one, &memory, &others, &Processes::default(), false).unwrap();
        let error = group.confirm(true, &|rank| rank + 4).map(|_| ()).unwrap_err();
        assert!(error.message().contains("rank 5: its shared memory has 4096 bytes"), "{error}");
    }
}
