//! The counters of contexts.

use std::collections::HashSet;
use std::ffi::{CString, c_char};
use std::sync::LazyLock;

use super::context::gloo_rs_context_t;
use super::guard::guard;
use super::handle;
use super::options::{self, Options};
use super::pointer;
use super::status::gloo_rs_status_t;
use crate::collective::Collective;
use crate::context::to_prometheus;
use crate::engine::recorder::Link;
use crate::engine::recorder::counters::{CallTotals, Kind};
use crate::error::{Error, Result};
use crate::messaging::Traffic;
use crate::types::Rank;

/// What the calls of one collective by one algorithm over one kind of link have done on a rank. Initialise it with
/// gloo_rs_call_counters_init; gloo_rs_context_counters fills it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_call_counters_t {
    /// sizeof(gloo_rs_call_counters_t).
    pub struct_size: usize,
    /// The name of the collective, such as `allreduce`. A static string.
    pub collective: *const c_char,
    /// The name of the algorithm, such as `ring`. A static string.
    pub algorithm: *const c_char,
    /// What moves the data: `shared_memory`, that all ranks share; `messages`; or `both`: memory that the ranks of a
    /// host share, and messages between hosts. A static string.
    pub link: *const c_char,
    /// Calls that were started, those in progress included.
    pub calls: u64,
    /// Those of them that failed. Calls that are refused, such as those on a broken context, do not start.
    pub failures: u64,
    /// The bytes of the calls that were started: in each, those that an error names for this rank.
    pub bytes: u64,
}

/// The bytes of messages that a rank has exchanged with another one. Initialise it with gloo_rs_link_counters_init;
/// gloo_rs_context_counters fills it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_link_counters_t {
    /// sizeof(gloo_rs_link_counters_t).
    pub struct_size: usize,
    /// The other rank.
    pub peer: i64,
    /// Bytes sent to it: messages of collectives and of buffers, with their headers.
    pub sent_bytes: u64,
    /// Bytes received from it.
    pub received_bytes: u64,
}

// SAFETY: repr(C), a usize first, and integers and pointers only.
unsafe impl Options for gloo_rs_call_counters_t {
    const NAME: &'static str = "gloo_rs_call_counters_t";
    const REQUIRED: usize = size_of::<usize>();
    fn set_defaults(&mut self) {}
}

// SAFETY: repr(C), a usize first, and integers only.
unsafe impl Options for gloo_rs_link_counters_t {
    const NAME: &'static str = "gloo_rs_link_counters_t";
    const REQUIRED: usize = size_of::<usize>();
    fn set_defaults(&mut self) {}
}

/// Sets `counters->struct_size`, and all else to 0. `struct_size` is sizeof(gloo_rs_call_counters_t); at most that many
/// bytes are written. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_call_counters_init(counters: *mut gloo_rs_call_counters_t, struct_size: usize) {
    // SAFETY: the header demands that `counters` is NULL or valid for writes of `struct_size` bytes.
    unsafe { options::init(counters, struct_size) }
}

/// Sets `counters->struct_size`, and all else to 0. `struct_size` is sizeof(gloo_rs_link_counters_t); at most that many
/// bytes are written. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_link_counters_init(counters: *mut gloo_rs_link_counters_t, struct_size: usize) {
    // SAFETY: the header demands that `counters` is NULL or valid for writes of `struct_size` bytes.
    unsafe { options::init(counters, struct_size) }
}

/// A name of a collective, an algorithm or a kind of link, as a static string.
fn name(name: &str) -> *const c_char {
    static NAMES: LazyLock<Vec<CString>> = LazyLock::new(|| {
        let of = |collective: &'static Collective| {
            [collective.name()].into_iter().chain(collective.algorithms().iter().map(|algorithm| algorithm.name))
        };
        let links = [Link::SharedMemory, Link::Messages, Link::Both].map(Link::name);
        let mut names: Vec<&str> = Collective::ALL.iter().flat_map(of).chain(links).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().map(|name| CString::new(name).unwrap_or_default()).collect()
    });
    let found = NAMES.binary_search_by(|known| known.to_bytes().cmp(name.as_bytes()));
    found.map_or(std::ptr::null(), |index| NAMES[index].as_ptr())
}

/// What the context has done since it was created, or got its present membership: for each collective, algorithm and
/// kind of link of which there were calls, an element of `calls`; for each rank with which messages were exchanged, one
/// of `links`, in the order of ranks. No number ever decreases.
///
/// `*call_count` and `*link_count` become the numbers of elements that there are. `calls` and `links` have room for
/// `call_capacity` and `link_capacity` elements, each initialised; either may be NULL, to learn the number only. If one
/// has too little room, the call fails with GLOO_RS_ERROR_INVALID_ARGUMENT and sets both numbers, which may have grown
/// when it is called again. What ranks exchange without a message, in memory that they share or by accesses of the
/// other rank's device, is not in `links` here; see docs/recorder.md.
///
/// May be called at any time, by any thread, also while other threads are in calls on the context, and after it is
/// broken or closed. Waits for no other rank.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_counters(
    context: *const gloo_rs_context_t,
    calls: *mut gloo_rs_call_counters_t,
    call_capacity: usize,
    call_count: *mut usize,
    links: *mut gloo_rs_link_counters_t,
    link_capacity: usize,
    link_count: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_counters", || {
        // SAFETY: the header demands that `context` is NULL or a live handle.
        let counters = unsafe { handle::get(context, "context") }?.context()?.totals()?;
        let of_calls: Vec<_> = counters.calls.iter().map(|(kind, totals)| of_calls(kind, totals)).collect();
        let of_links: Vec<_> = counters.links.iter().map(|(peer, traffic)| of_link(*peer, traffic)).collect();
        // SAFETY: the header demands that each list is NULL or valid for its capacity, and each count for a write.
        unsafe {
            let calls = options::fill_list(calls, call_capacity, call_count, "calls", &of_calls);
            options::fill_list(links, link_capacity, link_count, "links", &of_links).and(calls)
        }
    })
}

fn of_calls(kind: &Kind, totals: &CallTotals) -> gloo_rs_call_counters_t {
    let (collective, algorithm) = kind.names();
    let CallTotals { calls, failures, bytes } = *totals;
    gloo_rs_call_counters_t {
        struct_size: 0,
        collective: name(collective),
        algorithm: name(algorithm),
        link: name(kind.link.name()),
        calls,
        failures,
        bytes,
    }
}

fn of_link(peer: Rank, traffic: &Traffic) -> gloo_rs_link_counters_t {
    let Traffic { sent, received } = *traffic;
    gloo_rs_link_counters_t { struct_size: 0, peer: peer as i64, sent_bytes: sent, received_bytes: received }
}

/// Writes the counters of `n` contexts as text for Prometheus, in its text format, version 0.0.4 (the content type is
/// `text/plain; version=0.0.4`), to `buffer` of `capacity` bytes, and sets `*needed` to the size of the text with its
/// NUL byte, also if `capacity` is too small, which fails with GLOO_RS_ERROR_INVALID_ARGUMENT. `buffer` or `needed`,
/// but not both, may be NULL. The text grows with what the contexts do, so a second call may need more than the first
/// has said.
///
/// The metrics are gloo_rs_calls_total, gloo_rs_call_failures_total, gloo_rs_call_bytes_total,
/// gloo_rs_link_sent_bytes_total and gloo_rs_link_received_bytes_total, with the numbers of gloo_rs_context_counters.
/// All have the label `rank`; the first three `collective`, `algorithm` and `link`, the others `peer`. `names` are the
/// values of a label `context`, one for each context, all different; for a single context `names` may be NULL, and the
/// label is left out.
///
/// May be called at any time, by any thread. Waits for no other rank.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_prometheus_text(
    contexts: *const *const gloo_rs_context_t,
    names: *const *const c_char,
    n: usize,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_prometheus_text", || {
        // SAFETY: the header demands that `contexts` is NULL or an array of `n` handles.
        let contexts = unsafe { pointer::slice(contexts, n, "contexts") }?;
        // SAFETY: the header demands that `names` is NULL or an array of `n` strings.
        let names = if names.is_null() { None } else { Some(unsafe { pointer::texts(names, n, "names") }?) };
        let distinct: HashSet<&str> = names.iter().flatten().copied().collect();
        if n > names.as_ref().map_or(1, |_| distinct.len()) {
            let text = format!("the names of {n} contexts must be given, and must all be different");
            return Err(Error::invalid(text));
        }
        let named = contexts.iter().enumerate().map(|(at, context)| {
            // SAFETY: the header demands that each is NULL or a live handle.
            let counters = unsafe { handle::get(*context, &format!("contexts[{at}]")) }?.context()?.totals()?;
            Ok((names.as_ref().map(|names| names[at]), counters))
        });
        let text = to_prometheus(&named.collect::<Result<Vec<_>>>()?);
        // SAFETY: the header demands that `buffer` is NULL or valid for writes of `capacity` bytes, and `needed` is
        // NULL or valid for a write.
        unsafe { pointer::copy_out_text(&text, buffer, capacity, needed) }
    })
}
