//! Pairs, and one-sided channels between two ranks.

use crate::abi::*;
use crate::arguments::milliseconds;
use crate::context::Membership;
use crate::device::copied;
use crate::error::{check, detached};
use crate::handle::Handle;
use crate::interrupt::waiting;
use crate::memory::{Access, Memory};
use crate::message::range;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The connection to one peer.
#[pyclass(frozen, module = "gloo_rs")]
pub struct Pair(Handle<gloo_rs_pair_t>, Membership);

impl Pair {
    pub fn create(py: Python<'_>, context: &Membership, rank: i32) -> PyResult<Self> {
        // SAFETY: the context lives until the call returns.
        let create = |pair: *mut _| unsafe { gloo_rs_context_pair(context.get(), rank, pair) };
        Ok(Self(Handle::create(py, gloo_rs_pair_destroy, create)?, context.clone()))
    }
}

#[pymethods]
impl Pair {
    /// The peer's rank.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<i32> {
        let mut rank = -1;
        // SAFETY: the handle lives.
        check(py, unsafe { gloo_rs_pair_rank(self.0.get(), &mut rank) })?;
        Ok(rank)
    }

    /// This side's address, for the peer's `connect`.
    #[getter]
    fn address<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        // SAFETY: `copied` passes a buffer and its capacity.
        let address = copied(py, |buffer, capacity, needed| unsafe {
            gloo_rs_pair_address(self.0.get(), buffer.cast(), capacity, needed)
        })?;
        Ok(PyBytes::new(py, &address))
    }

    /// Connects to the peer with this address. Both sides must call it.
    fn connect(&self, py: Python<'_>, address: &[u8]) -> PyResult<()> {
        // SAFETY: the address lives until the call returns.
        let connect = || unsafe { gloo_rs_pair_connect(self.0.get(), address.as_ptr().cast(), address.len()) };
        waiting(py, &self.1, connect)
    }

    /// Whether the pair is connected.
    #[getter]
    fn is_connected(&self, py: Python<'_>) -> PyResult<bool> {
        let mut connected = false;
        // SAFETY: the handle lives.
        check(py, unsafe { gloo_rs_pair_is_connected(self.0.get(), &mut connected) })?;
        Ok(connected)
    }

    /// How threads wait for this pair only: asleep at once, or polling.
    #[pyo3(signature = (sync, *, busy_poll = false))]
    fn set_sync(&self, py: Python<'_>, sync: bool, busy_poll: bool) -> PyResult<()> {
        // SAFETY: the handle lives.
        check(py, unsafe { gloo_rs_pair_set_sync(self.0.get(), sync, busy_poll) })
    }

    /// Closes this connection.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        // SAFETY: the handle lives.
        check(py, detached(py, || unsafe { gloo_rs_pair_close(self.0.get()) }))
    }

    /// A buffer whose sends write into the peer's receive buffer of the same slot.
    fn send_buffer(&self, py: Python<'_>, slot: u64, memory: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        let memory = Memory::of(memory, Access::Read, "send_buffer", "memory")?;
        // SAFETY: the memory lives as long as the buffer.
        let handle = Handle::create(py, gloo_rs_buffer_destroy, |buffer| unsafe {
            gloo_rs_pair_create_send_buffer(self.0.get(), slot, memory.address, memory.bytes, buffer)
        })?;
        Ok(Buffer { handle, context: self.1.clone(), memory })
    }

    /// A buffer into which the peer's send buffer of the same slot writes.
    fn recv_buffer(&self, py: Python<'_>, slot: u64, memory: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        let memory = Memory::of(memory, Access::Write, "recv_buffer", "memory")?;
        // SAFETY: the memory lives as long as the buffer.
        let handle = Handle::create(py, gloo_rs_buffer_destroy, |buffer| unsafe {
            gloo_rs_pair_create_recv_buffer(self.0.get(), slot, memory.address, memory.bytes, buffer)
        })?;
        Ok(Buffer { handle, context: self.1.clone(), memory })
    }
}

/// One end of a one-sided channel to one peer.
#[pyclass(frozen, module = "gloo_rs")]
pub struct Buffer {
    // Before the memory: once it is destroyed, the library does not access that any more.
    handle: Handle<gloo_rs_buffer_t>,
    context: Membership,
    memory: Memory,
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.memory.bytes
    }

    /// Starts to write bytes from `offset` into the peer's buffer, at `remote_offset` there.
    #[pyo3(signature = (*, offset = 0, bytes = None, remote_offset = 0))]
    fn send(&self, py: Python<'_>, offset: usize, bytes: Option<usize>, remote_offset: usize) -> PyResult<()> {
        let (offset, bytes) = range(offset, bytes, &self.memory);
        // SAFETY: the handle lives.
        check(py, detached(py, || unsafe { gloo_rs_buffer_send(self.handle.get(), offset, bytes, remote_offset) }))
    }

    /// Waits until one more send has completed.
    #[pyo3(signature = (*, timeout = None))]
    fn wait_send(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let timeout = milliseconds(timeout)?;
        // SAFETY: the handle lives.
        waiting(py, &self.context, || unsafe { gloo_rs_buffer_wait_send(self.handle.get(), timeout) })
    }

    /// Waits until one more write has arrived, and returns its offset and length in bytes.
    #[pyo3(signature = (*, timeout = None))]
    fn wait_recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<(usize, usize)> {
        let (timeout, mut offset, mut bytes) = (milliseconds(timeout)?, 0, 0);
        // SAFETY: the handle lives.
        let wait = || unsafe { gloo_rs_buffer_wait_recv(self.handle.get(), timeout, &mut offset, &mut bytes) };
        waiting(py, &self.context, wait)?;
        Ok((offset, bytes))
    }
}
