//! Checks of publications and their fetches.
//!
//! What a rank fetches must be what the publishing rank had there when it published it, whether the engine copies it
//! then or readers read it in place. So a published element must not be written before all its fetches are done. A
//! rank knows this after [`Kind::AwaitReaders`], or because something that it received or fetched was sent or published
//! after the fetch.

use super::program::{Kind, NONE, Program};
use super::tables::{Fetch, Publication, Tables};
use super::{Contract, wrong};
use crate::error::Result;
use crate::schedule::Readers;
use crate::types::Rank;

/// Finds the publication of each fetch and checks their form.
pub(super) fn connect(program: &mut Program, contract: &dyn Contract) -> Result<()> {
    let mut tables = std::mem::take(&mut program.tables);
    let mut waits = Vec::new();
    for &Fetch { step, from, publication, at, elements } in &tables.fetches {
        let rank = program.steps[step as usize].rank as usize;
        let fail = |what| Err(wrong(format!("{} fetches {what}", program.name(step as usize))));
        if from >= program.ranks || from == rank || contract.host(from) != contract.host(rank) {
            return fail(format!("from rank {from}, which is not another rank of the same host"));
        }
        let Some(of) = tables.publications[from].get_mut(publication as usize) else {
            return fail(format!("publication {publication} of rank {from}, which never publishes it"));
        };
        let end = at.checked_add(elements).filter(|&end| end <= of.elements as usize);
        let Some(end) = end else {
            return fail(format!(
                "from element {at} of publication {publication} of rank {from}, which has {}",
                of.elements
            ));
        };
        of.fetches.push((step, at as u32, end as u32));
        waits.push((step, of.step));
        if elements > 0 {
            program.steps[step as usize].fetched = program.steps[of.step as usize].reads[0] + at as u32;
        }
        waits.extend(tables.awaits[from].iter().map(|&end| (end, step)));
    }
    for (rank, publications) in tables.publications.iter().enumerate() {
        for (number, publication) in publications.iter().enumerate() {
            check_readers(program, contract, rank, number, publication)?;
        }
    }
    tables.abreast = readers_abreast(&tables, program);
    if !waits.is_empty() {
        waits.sort_unstable();
        tables.first =
            (0..=program.steps.len() as u32).map(|step| waits.partition_point(|w| w.0 < step) as u32).collect();
        tables.across = waits.into_iter().map(|(_, earlier)| earlier).collect();
    }
    program.tables = tables;
    Ok(())
}

/// See [`Tables::abreast`].
fn readers_abreast(tables: &Tables, program: &Program) -> Vec<(u32, u32)> {
    let mut abreast = Vec::new();
    for publication in tables.publications.iter().flatten().filter(|publication| publication.elements > 0) {
        for &(other, ..) in &publication.fetches {
            // Dependencies on steps on shared memory are before the previous such step anyway.
            let others = program.after(other as usize).iter().map(|before| before.step);
            let others = others.filter(|step| !program.steps[*step as usize].kind.is_shared());
            for earlier in tables.previous(other as usize).into_iter().chain(others) {
                let fetches = publication.fetches.iter().map(|(step, ..)| *step).filter(|step| *step != other);
                abreast.extend(fetches.map(|step| (step, earlier)));
            }
        }
    }
    abreast.sort_unstable();
    abreast
}

/// Checks that exactly the ranks to which `publication` is published fetch it, each in one step.
fn check_readers(
    program: &Program,
    contract: &dyn Contract,
    rank: Rank,
    number: usize,
    publication: &Publication,
) -> Result<()> {
    let mut reads = vec![false; program.ranks];
    for (step, ..) in &publication.fetches {
        let reader = program.steps[*step as usize].rank as usize;
        if std::mem::replace(&mut reads[reader], true) {
            return Err(wrong(format!("rank {reader} fetches publication {number} of rank {rank} in several steps")));
        }
    }
    for (reader, reads) in reads.into_iter().enumerate() {
        let should = match publication.to {
            Readers::All => reader != rank && contract.host(reader) == contract.host(rank),
            Readers::One(to) => reader == to as usize,
            Readers::Set(set) => reader < u64::BITS as usize && set >> reader & 1 != 0,
        };
        if reads != should {
            let does = if reads { "fetches" } else { "does not fetch" };
            let to = publication.to;
            return Err(wrong(format!(
                "rank {reader} {does} publication {number} of rank {rank}, which is for {to:?}"
            )));
        }
    }
    let last = match publication.to {
        Readers::All => return Ok(()),
        Readers::One(to) => to as usize,
        Readers::Set(0) => return Err(wrong(format!("publication {number} of rank {rank} is for nobody"))),
        Readers::Set(set) => set.ilog2() as usize,
    };
    match last < program.ranks {
        true => Ok(()),
        false => Err(wrong(format!("publication {number} of rank {rank} is for rank {last}, which does not exist"))),
    }
}

/// Checks that the publications of each rank are in order, with a wait for the readers after the last, and that what is
/// fetched is not written before the fetch is done.
pub(super) fn check(program: &Program) -> Result<()> {
    let mut past = Past { program, progress: vec![0; program.steps.len()], visited: Vec::new(), open: Vec::new() };
    for (rank, publications) in program.tables.publications.iter().enumerate() {
        let Some(last) = publications.last() else { continue };
        let end = program.tables.awaits[rank].last().filter(|&&end| end > last.step);
        let Some(&end) = end else {
            return Err(wrong(format!("rank {rank} does not wait for the readers of its last publication")));
        };
        let steps: Vec<u32> = publications.iter().map(|publication| publication.step).chain([end]).collect();
        for pair in steps.windows(2) {
            past.collect(pair[1], u32::MAX, false);
            if !past.has(pair[0]) {
                let [earlier, later] = [pair[0], pair[1]].map(|step| program.name(step as usize));
                return Err(wrong(format!("{later} does not wait for {earlier}")));
            }
        }
        check_writes(program, &mut past, rank, publications)?;
    }
    Ok(())
}

/// Checks that no step of `rank` writes what is fetched of `publications` before the fetch is done.
fn check_writes(program: &Program, past: &mut Past<'_>, rank: Rank, publications: &[Publication]) -> Result<()> {
    let steps = program.of_rank[rank].clone();
    for (index, step) in steps.clone().zip(&program.steps[steps]).filter(|(_, step)| step.write != NONE) {
        let (begin, end) = (step.write, step.write + step.len);
        // Writes before the publication are checked as those before any other reader.
        let earlier = publications.iter().filter(|p| (p.step as usize) < index && p.elements > 0);
        for publication in earlier {
            let base = program.steps[publication.step as usize].reads[0];
            if base >= end || begin >= base + publication.elements {
                continue;
            }
            for &(fetch, from, to) in &publication.fetches {
                let (from, to) = ((base + from).max(begin), (base + to).min(end));
                if from >= to {
                    continue;
                }
                past.collect(index as u32, from - begin + 1, true);
                if !past.has(fetch) {
                    let address = program.address_name(from as usize);
                    let [write, fetch] = [index, fetch as usize].map(|step| program.name(step));
                    return Err(wrong(format!("{address}: {write} may be before {fetch} has read it")));
                }
            }
        }
    }
    Ok(())
}

/// What must have happened before a step.
struct Past<'a> {
    program: &'a Program,
    /// How many elements of each step the current search has already required.
    progress: Vec<u32>,
    visited: Vec<u32>,
    open: Vec<(u32, u32)>,
}

impl Past<'_> {
    /// Finds what must have happened before `step` processes its first `progress` elements; `across`: also on other
    /// ranks.
    fn collect(&mut self, step: u32, progress: u32, across: bool) {
        self.visited.drain(..).for_each(|step| self.progress[step as usize] = 0);
        self.visit(step, progress);
        while let Some((step, progress)) = self.open.pop() {
            let program = self.program;
            for before in program.after(step as usize) {
                self.visit(before.step, program.required(before, progress));
            }
            if !across {
                continue;
            }
            for &earlier in program.tables.across(step as usize) {
                self.visit(earlier, u32::MAX);
            }
            // What has been received was sent, but what has been sent may not have been received.
            let peer = program.steps[step as usize].peer;
            if peer != NONE && program.steps[step as usize].kind != Kind::Send {
                self.visit(peer, progress);
            }
        }
    }

    fn visit(&mut self, step: u32, progress: u32) {
        let flat = self.program.steps[step as usize];
        let progress = if flat.kind.is_shared() && progress > 0 { flat.len } else { progress.min(flat.len) };
        let known = &mut self.progress[step as usize];
        if progress > *known {
            if *known == 0 {
                self.visited.push(step);
            }
            *known = progress;
            self.open.push((step, progress));
        }
    }

    fn has(&self, step: u32) -> bool {
        self.progress[step as usize] > 0
    }
}
