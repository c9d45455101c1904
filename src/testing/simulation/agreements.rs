//! Ranks that agree on who is left, and make a context of these, while some of them are killed.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use super::job::{TIMEOUT, contexts, play_on};
use super::seeds::{run as run_seeds, seeds};
use super::split::{gather, link_model, never_poll};
use super::{Body, idle, run};
use crate::context::{Agreed, Connect, Context, ContextOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::testing::loopback::{Network, NodeStatus, Random};
use crate::testing::tier::Tier;

/// What a rank has got.
struct Ended {
    agreed: Result<Agreed>,
    /// The size of the smaller context, and what its ranks have gathered there: their ranks in the first one.
    shrunk: Result<(usize, Result<Vec<u64>>)>,
    /// What the ranks of that have agreed on.
    again: Option<Result<Agreed>>,
}

/// How the context is when its ranks agree.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Healthy,
    /// A collective was made before, in which a rank may have been lost.
    Used,
    /// One of the ranks has aborted it.
    Aborted,
}

/// The flags that `rank` passes: all of them but one.
fn flags(rank: usize) -> u64 {
    !(1 << rank)
}

/// What a rank does. `parts` keeps the contexts that it makes: if it is killed, they must be closed before its memory
/// is freed.
fn program(context: &Arc<Context>, state: State, parts: &RefCell<Vec<Arc<Context>>>) -> Ended {
    let rank = context.rank();
    never_poll(context);
    match state {
        State::Healthy => {}
        State::Used => drop(gather(context, 1)),
        State::Aborted if rank == context.size() - 1 => context.abort("to see who is left").unwrap(),
        State::Aborted => assert!(gather(context, 1).is_err()),
    }
    let agreed = context.agree(flags(rank), None);
    let part = context.shrink(None).inspect(|part| parts.borrow_mut().push(part.clone()));
    let shrunk = part.as_ref().map(|part| (part.size(), gather(part, rank as u64))).map_err(Error::clone);
    let again = part.ok().map(|part| part.agree(flags(rank), None));
    Ended { agreed, shrunk, again }
}

/// Plays a job in which each of these ranks is killed when it has sent so many bytes. Returns what the ranks have got,
/// and how much they have sent.
fn play(
    seed: u64,
    size: usize,
    state: State,
    connect: Connect,
    kills: &[(usize, u64)],
) -> (Vec<Option<Ended>>, Vec<u64>) {
    let network = Network::new(seed, link_model());
    let options = ContextOptions { timeout: TIMEOUT, check_calls: Some(false), connect, ..Default::default() };
    let contexts = contexts(&network, size, &options);
    let parts: Vec<RefCell<Vec<Arc<Context>>>> = contexts.iter().map(|_| RefCell::default()).collect();
    let ended: Vec<RefCell<Option<Ended>>> = contexts.iter().map(|_| RefCell::default()).collect();
    let bodies = contexts.iter().zip(parts.iter().zip(&ended)).map(|(context, (parts, ended))| -> Body<'_> {
        let network = &network;
        Box::new(move || {
            for (rank, bytes) in kills.iter().filter(|(rank, _)| *rank == context.rank()) {
                network.fail_after(*rank, *bytes, NodeStatus::Crashed);
            }
            let own = program(context, state, parts);
            *ended.borrow_mut() = Some(own);
        })
    });
    run(&network, bodies.collect(), |rank| {
        contexts[rank].close();
        parts[rank].borrow().iter().for_each(|part| part.close());
    });
    let ended: Vec<Option<Ended>> = ended.into_iter().map(RefCell::into_inner).collect();
    let killed = |rank: &usize| network.status(*rank) != NodeStatus::Running;
    let what = || format!("seed {seed}, {size} ranks, {state:?}, {connect:?}, {kills:?}");
    check(&ended, &(0..size).filter(killed).collect::<Vec<_>>()).unwrap_or_else(|wrong| panic!("{}: {wrong}", what()));
    (ended, (0..size).map(|rank| network.sent(rank)).collect())
}

/// All that are left have the same.
fn check(ended: &[Option<Ended>], killed: &[usize]) -> Result<(), String> {
    let left: Vec<(usize, &Ended)> = ended
        .iter()
        .enumerate()
        .filter(|(rank, _)| !killed.contains(rank))
        .map(|(rank, ended)| ended.as_ref().map(|ended| (rank, ended)).ok_or(format!("rank {rank} hangs")))
        .collect::<Result<_, _>>()?;
    let mut first: Option<(Agreed, usize)> = None;
    for (rank, Ended { agreed, shrunk, again }) in &left {
        let agreed = agreed.as_ref().map_err(|error| format!("rank {rank}: {error}"))?;
        let (size, gathered) = shrunk.as_ref().map_err(|error| format!("rank {rank}: {error}"))?;
        let of_left = left.iter().fold(u64::MAX, |all, (rank, _)| all & flags(*rank));
        let of_all = (0..ended.len()).fold(u64::MAX, |all, rank| all & flags(rank));
        if agreed.flags & !of_left != 0 || of_all & !agreed.flags != 0 {
            return Err(format!("rank {rank}: flags {:#x}", agreed.flags));
        }
        if let Some(living) = agreed.lost.iter().find(|lost| !killed.contains(lost)) {
            return Err(format!("rank {rank}: rank {living} is not lost"));
        }
        if agreed.has_grown == agreed.lost.is_empty() {
            return Err(format!("rank {rank}: {agreed:?}"));
        }
        match gathered {
            Ok(ranks) => {
                let rises = ranks.is_sorted_by(|one, other| one < other);
                let has_all = left.iter().all(|(rank, _)| ranks.contains(&(*rank as u64)));
                let is_lost = |of: &u64| agreed.lost.contains(&(*of as usize));
                if ranks.len() != *size || !rises || !has_all || ranks.iter().any(is_lost) {
                    return Err(format!("rank {rank}: the ranks {ranks:?} are left"));
                }
            }
            // A rank was killed after the context was made.
            Err(error) if killed.is_empty() || error.kind() != ErrorKind::ConnectionLost => {
                return Err(format!("rank {rank}: {:?}: {error}", error.kind()));
            }
            Err(_) => {}
        }
        again.as_ref().ok_or("no context")?.as_ref().map_err(|error| format!("rank {rank}, again: {error}"))?;
        let own = (agreed.clone(), *size);
        let other = first.get_or_insert_with(|| own.clone());
        if *other != own {
            return Err(format!("rank {rank}: {own:?} in place of {other:?}"));
        }
    }
    Ok(())
}

#[test]
fn ranks_agree_and_shrink_though_none_is_lost() {
    for (seed, size) in [1, 2, 3, 5, 8].into_iter().enumerate() {
        for state in [State::Healthy, State::Used, State::Aborted] {
            for connect in [Connect::Lazy, Connect::Full] {
                if size == 1 && state == State::Aborted {
                    continue;
                }
                let (ended, _) = play(seed as u64, size, state, connect, &[]);
                for Ended { agreed, shrunk, .. } in ended.into_iter().flatten() {
                    let (agreed, (of_shrunk, gathered)) = (agreed.unwrap(), shrunk.unwrap());
                    assert_eq!((agreed.lost.len(), agreed.flags), (0, u64::MAX << size), "{size}, {state:?}");
                    assert_eq!(of_shrunk, size);
                    gathered.unwrap();
                }
            }
        }
    }
}

#[test]
fn a_rank_is_killed_at_any_step() {
    for (state, connect, size) in [
        (State::Healthy, Connect::Lazy, 3),
        (State::Used, Connect::Lazy, 4),
        (State::Aborted, Connect::Lazy, 3),
        (State::Used, Connect::Full, 3),
    ] {
        let (_, sent) = play(1, size, state, connect, &[]);
        for (rank, sent) in sent.into_iter().enumerate() {
            let step = 1 + sent as usize / Tier::from_environment().of(8, 25, 1000);
            for bytes in (0..=sent).step_by(step) {
                play(1 + bytes % 7, size, state, connect, &[(rank, bytes)]);
            }
        }
    }
}

/// A job in which all ranks but one may be killed.
fn random_kills(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let size = 2 + random.below(5);
    let mut kills: Vec<(usize, u64)> = Vec::new();
    for _ in 0..random.below(size) {
        let rank = random.below(size);
        if kills.iter().all(|(other, _)| *other != rank) {
            kills.push((rank, random.below(4000) as u64));
        }
    }
    let state = [State::Healthy, State::Used, State::Aborted][random.below(3)];
    let connect = if random.one_in(3) { Connect::Full } else { Connect::Lazy };
    play(seed, size, state, connect, &kills);
    Ok(())
}

/// `SEEDS=20000` sets the number of fixed seeds; `SEED=7` runs only that one.
#[test]
fn all_but_one_rank_are_killed_at_random_steps() {
    let seeds = seeds(Tier::from_environment().of(60, 400, 20_000), "", 100);
    run_seeds(&seeds, random_kills, "simulation::agreements", "");
}

#[test]
fn an_agreement_that_times_out_names_the_ranks_that_have_not_come_and_goes_on() {
    const SHORT: Duration = Duration::from_millis(100);
    let network = Network::new(1, link_model());
    let options = ContextOptions { timeout: TIMEOUT, check_calls: Some(false), ..Default::default() };
    let ended = play_on(&network, 3, &options, |network, context| {
        never_poll(context);
        if context.rank() == 2 {
            idle(network, 2 * SHORT);
            return (None, context.agree(4, None).unwrap());
        }
        let began = network.now();
        let error = context.agree(7, Some(SHORT)).unwrap_err();
        let took = network.now().duration_since(began);
        assert!((SHORT..SHORT + Duration::from_millis(1)).contains(&took), "{took:?}: {error}");
        // The flags of the first call count.
        (Some(error), context.agree(0, None).unwrap())
    });
    for (rank, ended) in ended.into_iter().enumerate() {
        let (error, agreed) = ended.expect("the rank has ended");
        assert_eq!(agreed, Agreed { flags: 4, lost: Vec::new(), has_grown: false });
        if let Some(error) = error {
            // Rank 0 leads, and rank 1 asks it.
            assert_eq!((error.kind(), error.details().rank), (ErrorKind::Timeout, Some(2)), "{error}");
            let leader = if rank == 0 { "" } else { "rank 0 at node 3 (connected; it says that it waits for " };
            let text = format!(
                "rank {rank}: cannot agree: timed out after 100ms: waiting for {leader}rank 2 at node 5 (connected)"
            );
            assert!(error.message().starts_with(&text), "{error}");
        }
    }
}
