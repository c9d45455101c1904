//! Contexts: a rank's membership in a group, and its calls.

use crate::abi::*;
use crate::allocation::Allocation;
use crate::arguments::{milliseconds, seconds};
use crate::collective::{Arguments, Call, Place, kind_of_name};
use crate::counters;
use crate::device::Device;
use crate::error::{Failed, check, detached, exception, last_error_defaults};
use crate::group::Group;
use crate::handle::Handle;
use crate::interrupt::{waiting, waiting_on_thread};
use crate::message::UnboundBuffer;
use crate::options::with_context_options;
use crate::pair::Pair;
use crate::place::Places;
use crate::request::Request;
use crate::store::{Store, launch_from_env};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyFrozenSet, PySet};
use std::ffi::{CStr, CString, c_char};
use std::sync::Arc;

/// Longest handle of a context, with the NUL byte.
const HANDLE_BYTES: usize = 64;

type Object<'a, 'py> = &'a Bound<'py, PyAny>;
type Options<'a, 'py> = &'a Bound<'py, PyDict>;

/// A context, with which its requests, buffers and pairs keep it alive.
pub type Membership = Arc<Handle<gloo_rs_context_t>>;

/// This process's membership, as one rank, in a group of ranks that communicate.
#[pyclass(frozen, module = "gloo_rs")]
pub struct Context {
    handle: Membership,
    places: Places,
}

impl Context {
    fn connected(
        py: Python<'_>,
        store: &Store,
        place: Place,
        device: Option<&Device>,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<Self> {
        let own;
        let device = match device {
            Some(device) => device,
            None => {
                own = Device::create(py, None)?;
                &own
            }
        };
        let handle = Self::handle_of(py, device, place, options)?;
        let (context, store) = (handle.clone(), store.0.clone());
        let what = format!("the other ranks of {} over the store, as rank {}", place.size, place.rank);
        let give_up = || {
            // SAFETY: the handle lives until the call returns.
            let _ = unsafe { gloo_rs_context_close(handle.get()) };
        };
        // SAFETY: both handles live until the call returns.
        let connect = move || Failed::check(unsafe { gloo_rs_context_connect(context.get(), store.get()) });
        // SAFETY: the closure owns both.
        unsafe { waiting_on_thread(py, "connect", &what, give_up, connect) }?;
        Ok(Self::at(handle, place))
    }

    fn at(handle: Membership, place: Place) -> Self {
        Self { handle, places: Places::new(place) }
    }

    fn handle_of(
        py: Python<'_>,
        device: &Device,
        place: Place,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<Membership> {
        let handle = with_context_options(options, |options| {
            // SAFETY: the options and what they point to live until the call returns.
            Handle::create(py, gloo_rs_context_destroy, |context| unsafe {
                gloo_rs_context_create(device.handle(), place.rank, place.size, options, context)
            })
        })?;
        Ok(Arc::new(handle))
    }

    pub fn handle(&self) -> *mut gloo_rs_context_t {
        self.handle.get()
    }

    /// The context behind `handle`, which is connected.
    fn of(py: Python<'_>, handle: Handle<gloo_rs_context_t>) -> PyResult<Self> {
        let context = Self::at(Arc::new(handle), Place { rank: 0, size: 0 });
        context.find_place(py)?;
        Ok(context)
    }

    fn find_place(&self, py: Python<'_>) -> PyResult<()> {
        let mut place = Place { rank: 0, size: 0 };
        // SAFETY: the handle lives, and the results are numbers.
        check(py, unsafe { gloo_rs_context_rank(self.handle(), &mut place.rank) })?;
        // SAFETY: as above.
        check(py, unsafe { gloo_rs_context_size(self.handle(), &mut place.size) })?;
        self.places.set(place);
        Ok(())
    }

    fn run(&self, py: Python<'_>, kind: gloo_rs_collective_t, arguments: Arguments<'_, '_>) -> PyResult<()> {
        let mut call = Call::empty(kind);
        let calling = self.places.call(py)?;
        call.take(py, calling.place, arguments)?;
        call.run(py, &self.handle, calling.place.size == 1)
    }

    /// The call of a collective by its name, for `operation`. `counts` are those of its only list.
    fn call_by_name(
        py: Python<'_>,
        place: Place,
        operation: &str,
        collective: &str,
        counts: Option<Vec<usize>>,
        mut arguments: Arguments<'_, '_>,
    ) -> PyResult<Call> {
        let kind = kind_of_name(py, operation, collective)?;
        let list = if kind == GLOO_RS_SCATTERV { &mut arguments.send_counts } else { &mut arguments.recv_counts };
        if list.is_none() {
            *list = counts;
        }
        let mut call = Call::empty(kind);
        call.take(py, place, arguments)?;
        Ok(call)
    }
}

#[pymethods]
impl Context {
    #[new]
    #[pyo3(signature = (store, rank, size, *, device = None, **options))]
    fn new(
        py: Python<'_>,
        store: &Store,
        rank: i32,
        size: i32,
        device: Option<&Device>,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<Self> {
        Self::connected(py, store, Place { rank, size }, device, options)
    }

    /// The context of a launched job, as `gloo-rs run`, torchrun, mpirun and srun start one.
    #[staticmethod]
    #[pyo3(signature = (*, device = None, **options))]
    fn from_env(py: Python<'_>, device: Option<&Device>, options: Option<Options<'_, '_>>) -> PyResult<Self> {
        let timeout = match options.map(|options| options.get_item("timeout")).transpose()?.flatten() {
            Some(timeout) => timeout.extract()?,
            None => None,
        };
        let (store, rank, size) = launch_from_env(py, timeout)?;
        Self::connected(py, &store, Place { rank, size }, device, options)
    }

    /// A context without members, whose rank and size are -1 until it is reconfigured.
    #[staticmethod]
    #[pyo3(signature = (*, device = None, **options))]
    fn without_members(py: Python<'_>, device: Option<&Device>, options: Option<Options<'_, '_>>) -> PyResult<Self> {
        let place = Place { rank: -1, size: -1 };
        let own = device.is_none().then(|| Device::create(py, None)).transpose()?;
        let device = device.or(own.as_ref()).expect("one of them");
        Ok(Self::at(Self::handle_of(py, device, place, options)?, place))
    }

    /// This process's rank, from 0.
    #[getter]
    fn rank(&self) -> i32 {
        self.places.get().rank
    }

    /// The number of ranks.
    #[getter]
    fn size(&self) -> i32 {
        self.places.get().size
    }

    /// The timeout in seconds of operations whose call does not set one.
    #[getter]
    fn timeout(&self, py: Python<'_>) -> PyResult<f64> {
        let mut timeout = 0;
        // SAFETY: the handle lives, and the result is a number.
        check(py, unsafe { gloo_rs_context_timeout(self.handle(), &mut timeout) })?;
        Ok(seconds(timeout))
    }

    #[setter]
    fn set_timeout(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        // SAFETY: the handle lives.
        check(py, unsafe { gloo_rs_context_set_timeout(self.handle(), milliseconds(timeout)?) })
    }

    /// Why the context can no longer run collectives; None while it can.
    #[getter]
    fn broken<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (mut broken, mut error) = (false, last_error_defaults());
        // SAFETY: the handle lives, and the error is initialised.
        check(py, unsafe { gloo_rs_context_broken(self.handle(), &mut broken, &mut error) })?;
        Ok(broken.then(|| exception(py, error.status, &error).into_value(py).into_bound(py).into_any()))
    }

    /// The `gloo_rs_context_t *` of the C ABI, for code in C or C++ in this process; valid as long as this object.
    #[getter]
    fn handle_address(&self) -> usize {
        self.handle().expose_provenance()
    }

    /// Whether a rank runs on this host.
    fn shares_host(&self, py: Python<'_>, rank: i32) -> PyResult<bool> {
        let mut shares = false;
        // SAFETY: the handle lives.
        check(py, unsafe { gloo_rs_context_shares_host(self.handle(), rank, &mut shares) })?;
        Ok(shares)
    }

    /// Reserves slots for messages, and returns the first.
    #[pyo3(signature = (n = 1))]
    fn next_slot(&self, py: Python<'_>, n: u32) -> PyResult<u64> {
        let mut slot = 0;
        // SAFETY: the handle lives.
        check(py, unsafe { gloo_rs_context_next_slot(self.handle(), n, &mut slot) })?;
        Ok(slot)
    }

    /// What the context has done: numbers of calls, failures and bytes by collective, algorithm and kind of link, and
    /// the bytes of messages with each rank.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counters::of(py, self.handle())
    }

    /// Closes every connection: calls that wait, in any thread, and later ones fail with Closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        // SAFETY: the handle lives.
        check(py, detached(py, || unsafe { gloo_rs_context_close(self.handle()) }))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(&self, py: Python<'_>, _class: Py<PyAny>, _value: Py<PyAny>, _traceback: Py<PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<gloo_rs.Context rank {} of {}>", self.places.get().rank, self.places.get().size)
    }

    /// Splits the context: the ranks of one color form a new one, in the order of key. Returns None for color None.
    #[pyo3(signature = (color, key = 0))]
    fn split(&self, py: Python<'_>, color: Option<i32>, key: i32) -> PyResult<Option<Self>> {
        let color = color.unwrap_or(GLOO_RS_COLOR_UNDEFINED);
        let mut split = std::ptr::null_mut();
        // SAFETY: the handle lives.
        waiting(py, &self.handle, || unsafe { gloo_rs_context_split(self.handle(), color, key, &mut split) })?;
        Handle::of(split, gloo_rs_context_destroy).map(|handle| Self::of(py, handle)).transpose()
    }

    /// Ends what all ranks do on the context: their calls fail with Aborted and this reason.
    #[pyo3(signature = (reason = None))]
    fn abort(&self, py: Python<'_>, reason: Option<CString>) -> PyResult<()> {
        let reason = reason.as_deref().map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: the handle lives, and the reason is a string.
        check(py, detached(py, || unsafe { gloo_rs_context_abort(self.handle(), reason) }))
    }

    /// Whether a rank has aborted the context.
    #[getter]
    fn aborted(&self, py: Python<'_>) -> PyResult<bool> {
        let mut aborted = false;
        // SAFETY: the handle lives.
        check(py, unsafe { gloo_rs_context_is_aborted(self.handle(), &mut aborted) })?;
        Ok(aborted)
    }

    /// Agrees with the ranks that are left. Returns the bits that the flags of all have, and whether more ranks are
    /// lost than the last time.
    #[pyo3(signature = (flags = u64::MAX, timeout = None))]
    fn agree(&self, py: Python<'_>, mut flags: u64, timeout: Option<f64>) -> PyResult<(u64, bool)> {
        let timeout = milliseconds(timeout)?;
        let mut is_loss = false;
        // SAFETY: the handle lives, and the flags live until the call has returned.
        waiting(py, &self.handle, || match unsafe { gloo_rs_context_agree(self.handle(), &mut flags, timeout) } {
            GLOO_RS_ERROR_CONNECTION_LOST => {
                is_loss = true;
                GLOO_RS_OK
            }
            status => status,
        })?;
        Ok((flags, is_loss))
    }

    /// The ranks that were lost when the ranks agreed last, or shrank the context.
    #[getter]
    fn lost_ranks(&self, py: Python<'_>) -> PyResult<Vec<i32>> {
        let mut ranks = vec![0; usize::try_from(self.places.get().size).unwrap_or(0)];
        let mut n = 0;
        // SAFETY: the handle lives, and there is room for so many ranks.
        check(py, unsafe { gloo_rs_context_lost_ranks(self.handle(), ranks.as_mut_ptr(), ranks.len(), &mut n) })?;
        ranks.truncate(n);
        Ok(ranks)
    }

    /// Makes a context of the ranks that are left, in their order.
    #[pyo3(signature = (timeout = None))]
    fn shrink(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Self> {
        let (timeout, mut smaller) = (milliseconds(timeout)?, std::ptr::null_mut());
        // SAFETY: the handle lives.
        waiting(py, &self.handle, || unsafe { gloo_rs_context_shrink(self.handle(), timeout, &mut smaller) })?;
        Self::of(py, Handle::of(smaller, gloo_rs_context_destroy).expect("the call has succeeded"))
    }

    /// Names this process and its present membership, for `reconfigure` in other processes.
    #[getter(handle)]
    fn handle_text(&self, py: Python<'_>) -> PyResult<String> {
        let mut text = [0; HANDLE_BYTES];
        let (buffer, capacity) = (text.as_mut_ptr().cast(), text.len());
        // SAFETY: the handle lives, and the buffer is as long as that.
        check(py, unsafe { gloo_rs_context_handle(self.handle(), buffer, capacity, std::ptr::null_mut()) })?;
        let text = CStr::from_bytes_until_nul(&text).expect("the call has ended it with NUL");
        Ok(text.to_string_lossy().into_owned())
    }

    /// Gives the context a new membership: the processes with these handles. A list has the order of ranks; of a set,
    /// the library makes one.
    #[pyo3(signature = (store, id, handles, *, timeout = None))]
    fn reconfigure(
        &self,
        py: Python<'_>,
        store: &Store,
        id: i64,
        handles: Object<'_, '_>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let is_set = handles.is_instance_of::<PySet>() || handles.is_instance_of::<PyFrozenSet>();
        let texts = handles.try_iter()?.map(|handle| handle?.extract()).collect::<PyResult<Vec<CString>>>()?;
        let pointers: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
        let (handles, n, timeout) = (pointers.as_ptr(), pointers.len(), milliseconds(timeout)?);
        let (store, context) = (store.0.get(), self.handle());
        self.places.begin_change(py)?;
        let changed = waiting(py, &self.handle, || {
            self.places.end_calls(|| {
                // SAFETY: the handle lives.
                let _ = unsafe { gloo_rs_context_abort(context, std::ptr::null()) };
            });
            // SAFETY: both handles live, and the list and its texts until the call has returned.
            unsafe { gloo_rs_context_reconfigure(context, store, id, handles, n, !is_set, timeout) }
        });
        // An abort may end it when it has succeeded.
        let found = self.find_place(py);
        self.places.end_change();
        changed.and(found)
    }

    /// Memory that ranks of this host read without a copy, where they share memory.
    fn alloc(slf: Py<Self>, py: Python<'_>, bytes: usize) -> PyResult<Allocation> {
        Allocation::of(py, slf, bytes)
    }

    // Collectives. docs/python.md says what each takes.

    // Without **options, for which PyO3 passes arguments in a way that takes 100 ns more.
    #[pyo3(signature = (
        input, out = None, *, op = None, timeout = None, tag = None, algorithm = None, max_segment_bytes = None,
        groups = None, dims = None, base = None, dtype = None, factor = None, order = None
    ))]
    #[allow(clippy::too_many_arguments)] // the options of collectives
    fn allreduce(
        &self,
        py: Python<'_>,
        input: Option<Object<'_, '_>>,
        out: Option<Object<'_, '_>>,
        op: Option<u32>,
        timeout: Option<Object<'_, '_>>,
        tag: Option<Object<'_, '_>>,
        algorithm: Option<Object<'_, '_>>,
        max_segment_bytes: Option<Object<'_, '_>>,
        groups: Option<Object<'_, '_>>,
        dims: Option<Object<'_, '_>>,
        base: Option<Object<'_, '_>>,
        dtype: Option<Object<'_, '_>>,
        factor: Option<Object<'_, '_>>,
        order: Option<Object<'_, '_>>,
    ) -> PyResult<()> {
        let names = ["timeout", "tag", "algorithm", "max_segment_bytes", "groups", "dims", "base", "factor", "order"];
        let values = [timeout, tag, algorithm, max_segment_bytes, groups, dims, base, factor, order];
        let options = if values.iter().any(Option::is_some) {
            let given = names.into_iter().zip(values).filter(|(_, value)| value.is_some());
            Some(given.collect::<Vec<_>>().into_py_dict(py)?)
        } else {
            None
        };
        let options = options.as_ref();
        self.run(py, GLOO_RS_ALLREDUCE, Arguments { input, out, op, dtype, options, ..Arguments::default() })
    }

    #[pyo3(signature = (input, out = None, *, op = None, root = 0, **options))]
    fn reduce(
        &self,
        py: Python<'_>,
        input: Option<Object<'_, '_>>,
        out: Option<Object<'_, '_>>,
        op: Option<u32>,
        root: i32,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<()> {
        self.run(py, GLOO_RS_REDUCE, Arguments { input, out, op, root, options, ..Arguments::default() })
    }

    #[pyo3(signature = (input, out = None, *, op = None, counts = None, **options))]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        input: Option<Object<'_, '_>>,
        out: Option<Object<'_, '_>>,
        op: Option<u32>,
        counts: Option<Vec<usize>>,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<()> {
        let arguments = Arguments { input, out, op, recv_counts: counts, options, ..Arguments::default() };
        self.run(py, GLOO_RS_REDUCE_SCATTER, arguments)
    }

    #[pyo3(signature = (input, out = None, *, op = None, **options))]
    fn scan(
        &self,
        py: Python<'_>,
        input: Option<Object<'_, '_>>,
        out: Option<Object<'_, '_>>,
        op: Option<u32>,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<()> {
        self.run(py, GLOO_RS_SCAN, Arguments { input, out, op, options, ..Arguments::default() })
    }

    #[pyo3(signature = (input, out = None, *, op = None, **options))]
    fn exscan(
        &self,
        py: Python<'_>,
        input: Option<Object<'_, '_>>,
        out: Option<Object<'_, '_>>,
        op: Option<u32>,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<()> {
        self.run(py, GLOO_RS_EXSCAN, Arguments { input, out, op, options, ..Arguments::default() })
    }

    #[pyo3(signature = (buffer, *, root = 0, **options))]
    fn broadcast(
        &self,
        py: Python<'_>,
        buffer: Option<Object<'_, '_>>,
        root: i32,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<()> {
        self.run(py, GLOO_RS_BROADCAST, Arguments { input: buffer, root, options, ..Arguments::default() })
    }

    #[pyo3(signature = (input, out, **options))]
    fn allgather(
        &self,
        py: Python<'_>,
        input: Option<Object<'_, '_>>,
        out: Option<Object<'_, '_>>,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<()> {
        self.run(py, GLOO_RS_ALLGATHER, Arguments { input, out, options, ..Arguments::default() })
    }

    #[pyo3(signature = (input, out, counts, **options))]
    fn allgatherv(
        &self,
        py: Python<'_>,
        input: Option<Object<'_, '_>>,
        out: Option<Object<'_, '_>>,
        counts: Vec<usize>,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<()> {
        let arguments = Arguments { input, out, recv_counts: Some(counts), options, ..Arguments::default() };
        self.run(py, GLOO_RS_ALLGATHERV, arguments)
    }

    #[pyo3(signature = (input, out = None, *, root = 0, **options))]
    fn gather(
        &self,
        py: Python<'_>,
        input: Option<Object<'_, '_>>,
        out: Option<Object<'_, '_>>,
        root: i32,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<()> {
        self.run(py, GLOO_RS_GATHER, Arguments { input, out, root, options, ..Arguments::default() })
    }

    #[pyo3(signature = (input, out = None, counts = None, *, root = 0, **options))]
    fn gatherv(
        &self,
        py: Python<'_>,
        input: Option<Object<'_, '_>>,
        out: Option<Object<'_, '_>>,
        counts: Option<Vec<usize>>,
        root: i32,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<()> {
        let arguments = Arguments { input, out, recv_counts: counts, root, options, ..Arguments::default() };
        self.run(py, GLOO_RS_GATHERV, arguments)
    }

    #[pyo3(signature = (input, out = None, *, root = 0, **options))]
    fn scatter(
        &self,
        py: Python<'_>,
        input: Option<Object<'_, '_>>,
        out: Option<Object<'_, '_>>,
        root: i32,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<()> {
        self.run(py, GLOO_RS_SCATTER, Arguments { input, out, root, options, ..Arguments::default() })
    }

    #[pyo3(signature = (input, out = None, counts = None, *, root = 0, **options))]
    fn scatterv(
        &self,
        py: Python<'_>,
        input: Option<Object<'_, '_>>,
        out: Option<Object<'_, '_>>,
        counts: Option<Vec<usize>>,
        root: i32,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<()> {
        let arguments = Arguments { input, out, send_counts: counts, root, options, ..Arguments::default() };
        self.run(py, GLOO_RS_SCATTERV, arguments)
    }

    #[pyo3(signature = (input, out = None, **options))]
    fn alltoall(
        &self,
        py: Python<'_>,
        input: Option<Object<'_, '_>>,
        out: Option<Object<'_, '_>>,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<()> {
        self.run(py, GLOO_RS_ALLTOALL, Arguments { input, out, options, ..Arguments::default() })
    }

    #[pyo3(signature = (input, out, send_counts, recv_counts, **options))]
    fn alltoallv(
        &self,
        py: Python<'_>,
        input: Option<Object<'_, '_>>,
        out: Option<Object<'_, '_>>,
        send_counts: Vec<usize>,
        recv_counts: Vec<usize>,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<()> {
        let (send_counts, recv_counts) = (Some(send_counts), Some(recv_counts));
        let arguments = Arguments { input, out, send_counts, recv_counts, options, ..Arguments::default() };
        self.run(py, GLOO_RS_ALLTOALLV, arguments)
    }

    #[pyo3(signature = (input, out, destinations, **options))]
    fn pairwise_exchange(
        &self,
        py: Python<'_>,
        input: Option<Object<'_, '_>>,
        out: Option<Object<'_, '_>>,
        destinations: usize,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<()> {
        let arguments = Arguments { input, out, destinations, options, ..Arguments::default() };
        self.run(py, GLOO_RS_PAIRWISE_EXCHANGE, arguments)
    }

    #[pyo3(signature = (**options))]
    fn barrier(&self, py: Python<'_>, options: Option<Options<'_, '_>>) -> PyResult<()> {
        self.run(py, GLOO_RS_BARRIER, Arguments { options, ..Arguments::default() })
    }

    /// Prepares a collective as a persistent request.
    #[pyo3(signature = (
        collective, input = None, out = None, *, op = None, root = 0, counts = None, send_counts = None, recv_counts = None,
        destinations = 0, **options
    ))]
    #[allow(clippy::too_many_arguments)] // what the collectives take
    fn prepare(
        &self,
        py: Python<'_>,
        collective: &str,
        input: Option<Object<'_, '_>>,
        out: Option<Object<'_, '_>>,
        op: Option<u32>,
        root: i32,
        counts: Option<Vec<usize>>,
        send_counts: Option<Vec<usize>>,
        recv_counts: Option<Vec<usize>>,
        destinations: usize,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<Request> {
        let arguments =
            Arguments { input, out, op, root, send_counts, recv_counts, destinations, dtype: None, options };
        let calling = self.places.call(py)?;
        let call = Self::call_by_name(py, calling.place, "prepare", collective, counts, arguments)?;
        Request::prepare(py, &self.handle, call)
    }

    /// Prepares a collective, and starts it beside others of its kind and tag that were started so; at the end of the
    /// group, if one is given.
    #[pyo3(signature = (
        collective, input = None, out = None, *, op = None, root = 0, counts = None, send_counts = None, recv_counts = None,
        destinations = 0, group = None, **options
    ))]
    #[allow(clippy::too_many_arguments)] // what the collectives take
    fn start(
        &self,
        py: Python<'_>,
        collective: &str,
        input: Option<Object<'_, '_>>,
        out: Option<Object<'_, '_>>,
        op: Option<u32>,
        root: i32,
        counts: Option<Vec<usize>>,
        send_counts: Option<Vec<usize>>,
        recv_counts: Option<Vec<usize>>,
        destinations: usize,
        group: Option<&Bound<'_, Group>>,
        options: Option<Options<'_, '_>>,
    ) -> PyResult<Request> {
        let arguments =
            Arguments { input, out, op, root, send_counts, recv_counts, destinations, dtype: None, options };
        let calling = self.places.call(py)?;
        let call = Self::call_by_name(py, calling.place, "start", collective, counts, arguments)?;
        Request::started(py, &self.handle, call, group.map(Bound::get))
    }

    /// Does the work of all calls and messages in progress for `timeout` seconds: the thread that calls it is lent to
    /// the context.
    #[pyo3(signature = (*, timeout))]
    fn progress(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = milliseconds(Some(timeout))?;
        // SAFETY: the handle lives.
        waiting(py, &self.handle, || unsafe { gloo_rs_progress(self.handle(), timeout) })
    }

    /// Starts that begin together, at the end of a `with` statement, or not at all.
    fn group(&self, py: Python<'_>) -> PyResult<Group> {
        Group::begin(py, &self.handle)
    }

    // Messages.

    /// A buffer for messages to and from any rank.
    fn unbound_buffer(&self, py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<UnboundBuffer> {
        UnboundBuffer::create(py, &self.handle, memory)
    }

    /// The pair with a rank.
    fn pair(&self, py: Python<'_>, rank: i32) -> PyResult<Pair> {
        Pair::create(py, &self.handle, rank)
    }
}
