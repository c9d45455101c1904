//! What contexts have counted, as dictionaries and as text for Prometheus.

use crate::abi::*;
use crate::context::Context;
use crate::error::{check, detached};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;

/// A struct as `init` initialises it.
fn initialised<T>(init: unsafe extern "C" fn(*mut T, usize)) -> T {
    // SAFETY: integers and pointers, which may all be zero; the function writes no more than the size.
    unsafe {
        let mut value = std::mem::zeroed();
        init(&mut value, size_of::<T>());
        value
    }
}

/// A static string of the library.
fn text(name: *const c_char) -> &'static str {
    // SAFETY: the library sets names, which are ASCII.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default()
}

/// The counters of a context: lists of dictionaries, `calls` and `links`.
pub fn of<'py>(py: Python<'py>, context: *const gloo_rs_context_t) -> PyResult<Bound<'py, PyDict>> {
    let (mut calls, mut links) = (Vec::<gloo_rs_call_counters_t>::new(), Vec::<gloo_rs_link_counters_t>::new());
    let (call_count, link_count) = loop {
        let (mut call_count, mut link_count) = (0, 0);
        let (call_list, link_list) = (room(&mut calls), room(&mut links));
        // SAFETY: the context lives, and the lists have room for as many as is said, all initialised.
        let status = detached(py, || unsafe {
            let (calls, links) = (calls.len(), links.len());
            gloo_rs_context_counters(context, call_list, calls, &mut call_count, link_list, links, &mut link_count)
        });
        if call_count <= calls.len() && link_count <= links.len() {
            check(py, status)?;
            break (call_count, link_count);
        }
        calls.resize_with(call_count, || initialised(gloo_rs_call_counters_init));
        links.resize_with(link_count, || initialised(gloo_rs_link_counters_init));
    };
    let call = |counters: &gloo_rs_call_counters_t| {
        let call = PyDict::new(py);
        call.set_item("collective", text(counters.collective))?;
        call.set_item("algorithm", text(counters.algorithm))?;
        call.set_item("link", text(counters.link))?;
        call.set_item("calls", counters.calls)?;
        call.set_item("failures", counters.failures)?;
        call.set_item("bytes", counters.bytes)?;
        Ok(call)
    };
    let link = |counters: &gloo_rs_link_counters_t| {
        let link = PyDict::new(py);
        link.set_item("peer", counters.peer)?;
        link.set_item("sent_bytes", counters.sent_bytes)?;
        link.set_item("received_bytes", counters.received_bytes)?;
        Ok(link)
    };
    let all = PyDict::new(py);
    all.set_item("calls", calls[..call_count].iter().map(call).collect::<PyResult<Vec<_>>>()?)?;
    all.set_item("links", links[..link_count].iter().map(link).collect::<PyResult<Vec<_>>>()?)?;
    Ok(all)
}

/// NULL for an empty list.
fn room<T>(list: &mut Vec<T>) -> *mut T {
    if list.is_empty() { null_mut() } else { list.as_mut_ptr() }
}

/// The counters of contexts with these names in Prometheus's text format, version 0.0.4.
#[pyfunction]
pub fn prometheus_text(py: Python<'_>, contexts: &Bound<'_, PyDict>) -> PyResult<String> {
    // Those of one time: other threads may change the dictionary.
    let named: Vec<(CString, Bound<'_, Context>)> = contexts.items().extract()?;
    let handles: Vec<*const gloo_rs_context_t> =
        named.iter().map(|(_, context)| context.get().handle().cast_const()).collect();
    let names: Vec<*const c_char> = named.iter().map(|(name, _)| name.as_ptr()).collect();
    let mut buffer = Vec::<u8>::new();
    let end = loop {
        let (place, capacity, mut needed) = (room(&mut buffer), buffer.len(), 0);
        // SAFETY: the contexts live, the names are strings, and the buffer has as many bytes as is said.
        let status = detached(py, || unsafe {
            let (handles, names, n) = (handles.as_ptr(), names.as_ptr(), handles.len());
            gloo_rs_prometheus_text(handles, names, n, place.cast(), capacity, &mut needed)
        });
        if !buffer.is_empty() && needed <= capacity || needed == 0 {
            check(py, status)?;
            break needed.saturating_sub(1);
        }
        // The counters may have more digits the next time.
        buffer.resize(needed + needed / 8, 0);
    };
    Ok(String::from_utf8_lossy(&buffer[..end]).into_owned())
}
