//! Agreements of up to six ranks in every order of events that a seed gives, with ranks that end at any message.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::testing::loopback::Random;
use crate::testing::tier::Tier;

/// What comes to a rank from another one.
enum Event {
    Message(Vec<u8>),
    /// The end of the link, after all that came on it.
    Lost,
}

/// One rank's program: it agrees so many times, and takes each decision.
struct Program {
    agreement: Agreement,
    is_living: bool,
    /// Whether another rank has taken it for lost.
    is_expelled: bool,
    /// The flags of its votes.
    voted: Vec<u64>,
    decisions: Vec<(Decision, bool)>,
}

struct Job {
    random: Random,
    programs: Vec<Program>,
    /// What is on its way, by sender and receiver.
    links: Vec<Vec<VecDeque<Event>>>,
    /// The rank that ends once it has sent so many messages, for each that ends.
    ends: Vec<(Rank, usize)>,
    sent: Vec<usize>,
}

impl Job {
    fn new(seed: u64, size: usize, ends: &[(Rank, usize)]) -> Self {
        let program = |rank| Program {
            agreement: Agreement::new(rank, size),
            is_living: true,
            is_expelled: false,
            voted: Vec::new(),
            decisions: Vec::new(),
        };
        let mut job = Self {
            random: Random::new(seed),
            programs: (0..size).map(program).collect(),
            links: (0..size).map(|_| (0..size).map(|_| VecDeque::new()).collect()).collect(),
            ends: ends.to_vec(),
            sent: vec![0; size],
        };
        // Some end before they do anything.
        (0..size)
            .filter(|rank| job.ends.contains(&(*rank, 0)))
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|rank| job.end(rank));
        job
    }

    /// The process of `rank` ends. What it has sent arrives, but for the last pieces.
    fn end(&mut self, rank: Rank) {
        if !std::mem::replace(&mut self.programs[rank].is_living, false) {
            return;
        }
        for other in 0..self.programs.len() {
            let link = &mut self.links[rank][other];
            let arrives = self.random.below(link.len() + 1);
            link.truncate(arrives.max(link.len().saturating_sub(2)));
            link.push_back(Event::Lost);
            self.links[other][rank].clear();
        }
    }

    /// Sends what `rank` has to send, until it ends.
    fn flush(&mut self, rank: Rank) {
        for (to, message) in self.programs[rank].agreement.take_messages() {
            if !self.programs[rank].is_living {
                return;
            }
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes, self.programs.len()).unwrap(), message);
            if self.programs[to].is_living {
                self.links[rank][to].push_back(Event::Message(bytes));
            }
            self.sent[rank] += 1;
            if self.ends.contains(&(rank, self.sent[rank])) {
                return self.end(rank);
            }
        }
        for other in self.programs[rank].agreement.take_expelled() {
            if self.programs[other].is_living {
                self.programs[other].is_expelled = true;
                self.links[rank][other].push_back(Event::Lost);
                self.links[other][rank].clear();
                self.links[other][rank].push_back(Event::Lost);
            }
        }
    }

    /// The link between two living ranks breaks.
    fn break_link(&mut self, one: Rank, other: Rank) {
        self.links[one][other].push_back(Event::Lost);
        self.links[other][one].push_back(Event::Lost);
    }

    /// One thing happens. Returns whether anything could.
    fn step(&mut self, agreements: usize) -> bool {
        let size = self.programs.len();
        let mut possible = Vec::new();
        for rank in (0..size).filter(|rank| self.programs[*rank].is_living) {
            let program = &self.programs[rank];
            if program.voted.len() == program.decisions.len() && program.voted.len() < agreements {
                possible.push((rank, None));
            }
            possible
                .extend((0..size).filter(|from| !self.links[*from][rank].is_empty()).map(|from| (rank, Some(from))));
        }
        if possible.is_empty() {
            return false;
        }
        let (rank, from) = possible[self.random.below(possible.len())];
        let program = &mut self.programs[rank];
        match from.map(|from| (from, self.links[from][rank].pop_front())) {
            None => {
                let flags = self.random.bits() | self.random.bits();
                program.voted.push(flags);
                program.agreement.vote(Vote { flags, record: vec![rank as u8; rank] });
            }
            Some((from, Some(Event::Message(bytes)))) => {
                program.agreement.receive(from, Message::decode(&bytes, size).unwrap());
            }
            Some((from, _)) => program.agreement.lose(from),
        }
        // A program may come for its decision at once, or later.
        if !self.random.one_in(3)
            && let Some(decision) = program.agreement.take_decision()
        {
            program.decisions.push(decision);
        }
        self.flush(rank);
        true
    }

    /// Plays until nothing more happens. All that are left must have agreed so many times.
    fn play(mut self, agreements: usize) -> Result<(), String> {
        loop {
            while self.step(agreements) {}
            let mut any = false;
            for program in &mut self.programs {
                let taken = program.agreement.take_decision();
                any |= taken.is_some();
                program.decisions.extend(taken);
            }
            if !any {
                break;
            }
        }
        self.check(agreements)
    }

    fn check(&self, agreements: usize) -> Result<(), String> {
        let left: Vec<&Program> =
            self.programs.iter().filter(|program| program.is_living && !program.is_expelled).collect();
        for program in &left {
            let lost = program.decisions.iter().flat_map(|(decision, _)| &decision.lost);
            if let Some(rank) = lost.into_iter().find(|rank| !program.agreement.lost.contains(rank)) {
                return Err(format!("rank {} does not know that rank {rank} is lost", program.agreement.rank));
            }
            if program.decisions.len() != agreements {
                let (rank, awaited) = (program.agreement.rank, program.agreement.awaited());
                return Err(format!(
                    "rank {rank} has {} decisions, and waits for {awaited:?}",
                    program.decisions.len()
                ));
            }
        }
        let broken = self.programs.iter().any(|program| program.is_expelled);
        for number in 0..agreements {
            // Whoever has decided has decided alike, also those that have ended since.
            let counts = |program: &&Program| !program.is_expelled;
            let decided: Vec<_> =
                self.programs.iter().filter(counts).filter_map(|program| program.decisions.get(number)).collect();
            let Some(first) = decided.first() else { continue };
            if decided.iter().any(|decision| decision != first) {
                return Err(format!("agreement {number}: {decided:#?}"));
            }
            let (decision, _) = first;
            let votes = |program: &&Program| program.voted.get(number).copied();
            let all =
                self.programs.iter().filter_map(|program| votes(&program)).fold(u64::MAX, |all, flags| all & flags);
            let of_left = left.iter().filter_map(votes).fold(u64::MAX, |all, flags| all & flags);
            if decision.flags & all != all || decision.flags & !of_left != 0 {
                return Err(format!("agreement {number}: flags {:#x} of {all:#x} and {of_left:#x}", decision.flags));
            }
            for (rank, program) in self.programs.iter().enumerate() {
                let record = decision.records.iter().find(|(of, _)| *of == rank);
                let is_lost = decision.lost.contains(&rank);
                if is_lost == record.is_some() || record.is_some_and(|(_, record)| *record != vec![rank as u8; rank]) {
                    return Err(format!("agreement {number}: rank {rank}: {decision:?}"));
                }
                if is_lost && program.is_living && !broken {
                    return Err(format!("agreement {number}: rank {rank} is not lost"));
                }
            }
        }
        Ok(())
    }
}

fn assert_agrees(job: Job, agreements: usize, what: &dyn Fn() -> String) {
    job.play(agreements).unwrap_or_else(|wrong| panic!("{}: {wrong}", what()));
}

#[test]
fn ranks_agree_and_send_four_messages_in_a_row() {
    for size in 1..6 {
        let mut job = Job::new(1, size, &[]);
        while job.step(1) {}
        assert_eq!(job.sent.iter().sum::<usize>(), 4 * (size - 1), "{size} ranks");
        assert_agrees(Job::new(1, size, &[]), 3, &|| format!("{size} ranks"));
    }
}

/// Each rank ends at each message that it sends, in one of two agreements.
#[test]
fn one_rank_ends_at_any_message() {
    for size in 2..6 {
        for rank in 0..size {
            for message in 0..4 * size {
                for seed in 0..Tier::from_environment().of(5, 15, 1000) {
                    let what = || format!("seed {seed}: rank {rank} of {size} ends at message {message}");
                    assert_agrees(Job::new(seed, size, &[(rank, message)]), 2, &what);
                }
            }
        }
    }
}

#[test]
fn all_but_one_rank_end_at_any_message() {
    for seed in 0..Tier::from_environment().of(3000, 30_000, 3_000_000) {
        let mut random = Random::new(seed);
        let size = 2 + random.below(5);
        let mut ends: Vec<(Rank, usize)> = Vec::new();
        for _ in 0..random.below(size) {
            let rank = random.below(size);
            if ends.iter().all(|(other, _)| *other != rank) {
                ends.push((rank, random.below(3 * size)));
            }
        }
        assert_agrees(Job::new(seed, size, &ends), 3, &|| format!("seed {seed}: {ends:?} of {size}"));
    }
}

/// The ranks that no other one takes for lost agree.
#[test]
fn a_link_between_two_living_ranks_breaks() {
    for seed in 0..Tier::from_environment().of(3000, 30_000, 3_000_000) {
        let mut random = Random::new(seed);
        let size = 2 + random.below(4);
        let (one, other) = (random.below(size), random.below(size));
        let mut job = Job::new(seed, size, &[]);
        for _ in 0..random.below(20) {
            job.step(3);
        }
        if one != other {
            job.break_link(one, other);
        }
        assert_agrees(job, 3, &|| format!("seed {seed}: between ranks {one} and {other} of {size}"));
    }
}

#[test]
fn a_vote_that_was_given_is_not_replaced() {
    let mut agreement = Agreement::new(0, 1);
    agreement.vote(Vote { flags: 1, record: Vec::new() });
    agreement.vote(Vote { flags: 2, record: Vec::new() });
    assert_eq!(agreement.take_decision().map(|(decision, _)| decision.flags), Some(1));
    assert_eq!(agreement.take_decision(), None);
}

#[test]
fn the_list_of_lost_ranks_grows_once() {
    let mut agreement = Agreement::new(1, 2);
    agreement.lose(0);
    for has_grown in [true, false] {
        agreement.vote(Vote::default());
        let (decision, grown) = agreement.take_decision().unwrap();
        assert_eq!((decision.lost, grown), (vec![0], has_grown));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(kind in 0..7u8, bytes: Vec<u8>, size in 1..9usize) {
        let bytes = [&[kind][..], &bytes].concat();
        if let Ok(message) = Message::decode(&bytes, size) {
            prop_assert_eq!(Message::decode(&message.encode(), size).unwrap(), message);
        }
    }
}
