//! Messages to and from any rank.

use crate::abi::*;
use crate::arguments::{milliseconds, text};
use crate::context::Membership;
use crate::device::{copied, text_without_nul};
use crate::error::{check, detached};
use crate::group::Group;
use crate::handle::{Handle, lock_attached};
use crate::interrupt::waiting;
use crate::memory::{Access, Memory};
use crate::queue::BufferAttachment;
use pyo3::exceptions::PyBufferError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard};

/// Memory for messages to and from any rank of a context.
#[pyclass(frozen, weakref, module = "gloo_rs")]
pub struct UnboundBuffer {
    // Before the memory: once it is destroyed, the library does not access that any more.
    handle: Handle<gloo_rs_unbound_buffer_t>,
    context: Membership,
    memory: Memory,
    is_writable: bool,
    /// The queue that reports the ends of its messages, if one does.
    attachment: Mutex<Option<BufferAttachment>>,
}

/// The range of a message: from `offset` on, and to the end if its length is not given.
pub fn range(offset: usize, bytes: Option<usize>, memory: &Memory) -> (usize, usize) {
    (offset, bytes.unwrap_or_else(|| memory.bytes.saturating_sub(offset)))
}

impl UnboundBuffer {
    pub fn create(py: Python<'_>, context: &Membership, memory: &Bound<'_, PyAny>) -> PyResult<Self> {
        let name = "unbound_buffer";
        // Memory that is read-only serves for sends and puts.
        let (memory, is_writable) = match Memory::of(memory, Access::Write, name, "memory") {
            Ok(memory) => (memory, true),
            Err(error) => (Memory::of(memory, Access::Read, name, "memory").map_err(|_| error)?, false),
        };
        // SAFETY: the memory lives as long as the buffer.
        let handle = Handle::create(py, gloo_rs_unbound_buffer_destroy, |buffer| unsafe {
            gloo_rs_unbound_buffer_create(context.get(), memory.address, memory.bytes, buffer)
        })?;
        Ok(Self { handle, context: context.clone(), memory, is_writable, attachment: Mutex::default() })
    }

    fn check_writable(&self) -> PyResult<()> {
        if self.is_writable {
            return Ok(());
        }
        Err(PyBufferError::new_err("the memory of this buffer is read-only: it serves for sends and puts"))
    }

    pub fn handle(&self) -> *mut gloo_rs_unbound_buffer_t {
        self.handle.get()
    }

    pub fn attachment(&self, py: Python<'_>) -> MutexGuard<'_, Option<BufferAttachment>> {
        lock_attached(py, &self.attachment)
    }
}

/// Starts an operation, by itself or in a group.
fn start(
    py: Python<'_>,
    group: Option<&Bound<'_, Group>>,
    call: impl FnOnce(Option<*mut gloo_rs_group_t>) -> gloo_rs_status_t,
) -> PyResult<()> {
    match group {
        None => check(py, detached(py, || call(None))),
        Some(group) => group.get().naming(py, |group| call(Some(group))),
    }
}

#[pymethods]
impl UnboundBuffer {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let attachment = self.attachment.try_lock().ok();
        attachment
            .iter()
            .filter_map(|attachment| attachment.as_ref())
            .try_for_each(|attachment| attachment.traverse(&visit))
    }

    fn __clear__(&self) {
        if let Ok(mut attachment) = self.attachment.try_lock()
            && let Some(attachment) = attachment.as_mut()
        {
            attachment.clear();
        }
    }

    fn __len__(&self) -> usize {
        self.memory.bytes
    }

    /// Starts to send bytes from `offset` to rank `to`; at the end of the group, if one is given.
    #[pyo3(signature = (to, slot, *, offset = 0, bytes = None, group = None))]
    fn send(
        &self,
        py: Python<'_>,
        to: i32,
        slot: u64,
        offset: usize,
        bytes: Option<usize>,
        group: Option<&Bound<'_, Group>>,
    ) -> PyResult<()> {
        let (offset, bytes) = range(offset, bytes, &self.memory);
        // SAFETY: the handles live.
        let send = |group: Option<*mut gloo_rs_group_t>| unsafe {
            match group {
                None => gloo_rs_unbound_buffer_send(self.handle(), to, slot, offset, bytes),
                Some(group) => gloo_rs_group_send(group, self.handle(), to, slot, offset, bytes),
            }
        };
        start(py, group, send)
    }

    /// Starts to receive a message to `offset`, from a rank, or from any of several; at the end of the group, if one is
    /// given.
    #[pyo3(signature = (source, slot, *, offset = 0, bytes = None, group = None))]
    fn recv(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        slot: u64,
        offset: usize,
        bytes: Option<usize>,
        group: Option<&Bound<'_, Group>>,
    ) -> PyResult<()> {
        self.check_writable()?;
        let (offset, bytes) = range(offset, bytes, &self.memory);
        let ranks: Vec<i32> = match source.extract::<i32>() {
            Ok(rank) => vec![rank],
            Err(_) => source.extract()?,
        };
        let (from, n) = (ranks.as_ptr(), ranks.len());
        // SAFETY: the handles and the ranks live until the call returns.
        let recv = |group: Option<*mut gloo_rs_group_t>| unsafe {
            match group {
                None => gloo_rs_unbound_buffer_recv_any(self.handle(), from, n, slot, offset, bytes),
                Some(group) => gloo_rs_group_recv_any(group, self.handle(), from, n, slot, offset, bytes),
            }
        };
        start(py, group, recv)
    }

    /// Waits until one more send, put or get has completed, and returns its peer.
    #[pyo3(signature = (*, timeout = None))]
    fn wait_send(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<i32> {
        let (timeout, mut rank) = (milliseconds(timeout)?, -1);
        // SAFETY: the handle lives.
        let wait = || unsafe { gloo_rs_unbound_buffer_wait_send(self.handle(), timeout, &mut rank) };
        waiting(py, &self.context, wait)?;
        Ok(rank)
    }

    /// Waits until one more receive has completed, and returns the sender and the length of the message in bytes.
    #[pyo3(signature = (*, timeout = None))]
    fn wait_recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<(i32, usize)> {
        let (timeout, mut rank, mut bytes) = (milliseconds(timeout)?, -1, 0);
        // SAFETY: the handle lives.
        let wait = || unsafe { gloo_rs_unbound_buffer_wait_recv(self.handle(), timeout, &mut rank, &mut bytes) };
        waiting(py, &self.context, wait)?;
        Ok((rank, bytes))
    }

    /// Ends the current wait_send of another thread; if there is none, the next one.
    fn abort_wait_send(&self, py: Python<'_>) -> PyResult<()> {
        // SAFETY: the handle lives.
        check(py, unsafe { gloo_rs_unbound_buffer_abort_wait_send(self.handle()) })
    }

    /// Ends the current wait_recv of another thread; if there is none, the next one.
    fn abort_wait_recv(&self, py: Python<'_>) -> PyResult<()> {
        // SAFETY: the handle lives.
        check(py, unsafe { gloo_rs_unbound_buffer_abort_wait_recv(self.handle()) })
    }

    /// The key with which other ranks put into this buffer and get from it.
    #[getter]
    fn remote_key(&self, py: Python<'_>) -> PyResult<String> {
        self.check_writable()?;
        // SAFETY: `copied` passes a buffer and its capacity.
        copied(py, |key, capacity, needed| unsafe {
            gloo_rs_unbound_buffer_remote_key(self.handle(), key.cast(), capacity, needed)
        })
        .map(text_without_nul)
    }

    /// Starts to write bytes from `offset` into the buffer that `key` names.
    #[pyo3(signature = (key, *, offset = 0, remote_offset = 0, bytes = None))]
    fn put(
        &self,
        py: Python<'_>,
        key: &str,
        offset: usize,
        remote_offset: usize,
        bytes: Option<usize>,
    ) -> PyResult<()> {
        let key = text(key)?;
        let (offset, bytes) = range(offset, bytes, &self.memory);
        // SAFETY: the handle and the key live until the call returns.
        let put =
            || unsafe { gloo_rs_unbound_buffer_put(self.handle(), key.as_ptr(), 0, offset, remote_offset, bytes) };
        check(py, detached(py, put))
    }

    /// Has `callback` called with an Entry at the end of each send, receive, put and get from now on, on a thread of
    /// the device: in place of waits.
    fn set_callback(slf: &Bound<'_, Self>, callback: Py<PyAny>) -> PyResult<()> {
        BufferAttachment::call_back(slf, callback)
    }

    /// Starts to read bytes of the buffer that `key` names to `offset`.
    #[pyo3(signature = (key, *, offset = 0, remote_offset = 0, bytes = None))]
    fn get(
        &self,
        py: Python<'_>,
        key: &str,
        offset: usize,
        remote_offset: usize,
        bytes: Option<usize>,
    ) -> PyResult<()> {
        self.check_writable()?;
        let key = text(key)?;
        let (offset, bytes) = range(offset, bytes, &self.memory);
        // SAFETY: the handle and the key live until the call returns.
        let get =
            || unsafe { gloo_rs_unbound_buffer_get(self.handle(), key.as_ptr(), 0, offset, remote_offset, bytes) };
        check(py, detached(py, get))
    }
}

/// The rank and the bytes of the buffer that a remote key names.
#[pyfunction]
pub fn remote_key_parse(py: Python<'_>, key: &str) -> PyResult<(i32, usize)> {
    let (key, mut rank, mut bytes) = (text(key)?, -1, 0);
    // SAFETY: the key lives until the call returns.
    check(py, unsafe { gloo_rs_remote_key_parse(key.as_ptr(), &mut rank, &mut bytes) })?;
    Ok((rank, bytes))
}
