//! A collective call: its arguments as the library's options. Python says how long buffers are, so that counts follow
//! from them, and what does not fit is refused here.

use crate::abi::*;
use crate::arguments::{Keywords, milliseconds, text};
use crate::error::{check, detached, invalid};
use crate::handle::Handle;
use crate::interrupt::waiting;
use crate::memory::{Access, Memory, type_of_name};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyTuple};
use std::ffi::CString;

/// The names of the collectives, at the numbers of gloo_rs_collective_t.
const NAMES: [&str; 16] = [
    "allreduce",
    "reduce",
    "reduce_scatter",
    "broadcast",
    "allgather",
    "allgatherv",
    "gather",
    "gatherv",
    "scatter",
    "scatterv",
    "alltoall",
    "alltoallv",
    "barrier",
    "pairwise_exchange",
    "scan",
    "exscan",
];

/// The collective of this name, for `operation`.
pub fn kind_of_name(py: Python<'_>, operation: &str, name: &str) -> PyResult<gloo_rs_collective_t> {
    let found = NAMES.iter().position(|known| *known == name);
    found.map(|at| at as gloo_rs_collective_t).ok_or_else(|| {
        invalid(py, operation, &format!("there is no collective {name:?}; there are {}", NAMES.join(", ")))
    })
}

/// What a call was given.
#[derive(Default)]
pub struct Arguments<'a, 'py> {
    pub input: Option<&'a Bound<'py, PyAny>>,
    pub out: Option<&'a Bound<'py, PyAny>>,
    pub op: Option<gloo_rs_op_t>,
    pub root: i32,
    pub send_counts: Option<Vec<usize>>,
    pub recv_counts: Option<Vec<usize>>,
    pub destinations: usize,
    /// The keyword argument of this name, if it is not among the options.
    pub dtype: Option<&'a Bound<'py, PyAny>>,
    pub options: Option<&'a Bound<'py, PyDict>>,
}

/// A call that is ready to be made.
pub struct Call {
    kind: gloo_rs_collective_t,
    input: Option<Memory>,
    output: Option<Memory>,
    /// A buffer for each block, in place of the one above.
    input_blocks: Vec<Memory>,
    output_blocks: Vec<Memory>,
    /// Its pointers are valid within `with_options` only.
    options: gloo_rs_collective_options_t,
    lists: Lists,
}

// SAFETY: nobody reads the pointers in `options` but `with_options`, which sets them.
unsafe impl Send for Call {}
// SAFETY: as above.
unsafe impl Sync for Call {}

/// What the options point to, besides the buffers.
#[derive(Default)]
struct Lists {
    send_counts: Option<Vec<usize>>,
    recv_counts: Option<Vec<usize>>,
    algorithm: Option<CString>,
    groups: Option<Vec<u32>>,
    dims: Option<Vec<usize>>,
    order: Option<CString>,
    /// One element of the call's type, in its first bytes.
    factor: Option<[u8; 8]>,
}

/// The ranks of a context, for which a call is made.
#[derive(Clone, Copy)]
pub struct Place {
    pub rank: i32,
    pub size: i32,
}

impl Call {
    /// A call without arguments, which `take` adds to it: a call is long, and moving it takes time.
    pub fn empty(kind: gloo_rs_collective_t) -> Self {
        Self {
            kind,
            input: None,
            output: None,
            input_blocks: Vec::new(),
            output_blocks: Vec::new(),
            options: defaults(),
            lists: Lists::default(),
        }
    }

    /// Takes the arguments for a context with this place among its ranks.
    pub fn take(&mut self, py: Python<'_>, place: Place, given: Arguments<'_, '_>) -> PyResult<()> {
        let kind = self.kind;
        let operation = NAMES[kind as usize];
        let at_root = place.rank == given.root;
        // On other ranks than the root, the collectives with a root ignore what only the root needs.
        let (mut input, mut out) = match kind {
            GLOO_RS_BROADCAST if at_root => (given.input.or(given.out), None),
            GLOO_RS_BROADCAST => (None, given.input.or(given.out)),
            GLOO_RS_REDUCE | GLOO_RS_GATHER | GLOO_RS_GATHERV if !at_root => (given.input, None),
            GLOO_RS_SCATTER | GLOO_RS_SCATTERV if !at_root => (None, given.out),
            GLOO_RS_BARRIER => (None, None),
            _ => (given.input, given.out),
        };
        let writes = !matches!(kind, GLOO_RS_BARRIER | GLOO_RS_BROADCAST)
            && (at_root || !matches!(kind, GLOO_RS_REDUCE | GLOO_RS_GATHER | GLOO_RS_GATHERV));
        let mut out_name = "out";
        if writes && out.is_none() {
            // In place: the one buffer is input and output.
            let in_place = matches!(
                kind,
                GLOO_RS_ALLREDUCE
                    | GLOO_RS_REDUCE
                    | GLOO_RS_REDUCE_SCATTER
                    | GLOO_RS_SCAN
                    | GLOO_RS_EXSCAN
                    | GLOO_RS_ALLTOALL
            ) || at_root && matches!(kind, GLOO_RS_SCATTER | GLOO_RS_SCATTERV);
            if !in_place || input.is_none() {
                return Err(PyTypeError::new_err(format!("{operation}: out is missing, where the result goes")));
            }
            (input, out) = (None, input);
            out_name = "input";
        }
        if input.is_none() && out.is_none() && kind != GLOO_RS_BARRIER {
            return Err(PyTypeError::new_err(format!("{operation}: the buffer is missing")));
        }
        if let Some(input) = input {
            if is_list(input) {
                self.input_blocks = self.blocks_of(py, place, input, Access::Read, operation, "input")?;
            } else {
                self.input = Some(Memory::of(input, Access::Read, operation, "input")?);
            }
        }
        if let Some(out) = out {
            if is_list(out) {
                self.output_blocks = self.blocks_of(py, place, out, Access::Write, operation, out_name)?;
            } else {
                self.output = Some(Memory::of(out, Access::Write, operation, out_name)?);
            }
        }
        let has_blocks = !self.input_blocks.is_empty() || !self.output_blocks.is_empty();
        if has_blocks
            && matches!(kind, GLOO_RS_ALLTOALL | GLOO_RS_ALLTOALLV)
            && (self.input.is_some() || self.output.is_some())
        {
            return Err(invalid(py, operation, "input and out must both be lists of buffers, or neither"));
        }
        self.options.blocks = has_blocks.into();
        self.lists.send_counts = given.send_counts;
        self.lists.recv_counts = given.recv_counts;
        self.options.root = given.root;
        self.options.op = given.op.unwrap_or(GLOO_RS_SUM);
        self.options.destinations = given.destinations;
        if kind != GLOO_RS_BARRIER {
            // What `Memory` takes; so CUDA's driver is not asked about it.
            self.options.memory = GLOO_RS_MEMORY_HOST;
        }
        let mut factor = None;
        if let Some(options) = given.options {
            factor = self.take_options(py, operation, options)?;
        }
        if let Some(name) = given.dtype {
            self.take_type(py, operation, name)?;
        }
        self.set_type(py, operation)?;
        if let Some(factor) = factor {
            self.lists.factor = Some(self.element_of(py, operation, &factor)?);
        }
        self.set_counts(py, operation, place, at_root)
    }

    /// The keyword arguments that all collectives have. Returns the factor, which depends on the type.
    fn take_options<'py>(
        &mut self,
        py: Python<'py>,
        operation: &str,
        given: &Bound<'py, PyDict>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut given = Keywords::new(Some(given));
        if let Some(timeout) = given.take("timeout")? {
            self.options.timeout_ms = milliseconds(Some(timeout.extract()?))?;
        }
        if let Some(tag) = given.take("tag")? {
            self.options.tag = tag.extract()?;
        }
        if let Some(algorithm) = given.take("algorithm")? {
            self.lists.algorithm = Some(text(algorithm.extract()?)?);
        }
        if let Some(order) = given.take("order")? {
            self.lists.order = Some(text(order.extract()?)?);
        }
        if let Some(bytes) = given.take("max_segment_bytes")? {
            self.options.max_segment_bytes = bytes.extract()?;
        }
        if let Some(groups) = given.take("groups")? {
            self.lists.groups = Some(groups.extract()?);
        }
        if let Some(dims) = given.take("dims")? {
            self.lists.dims = Some(dims.extract()?);
        }
        if let Some(base) = given.take("base")? {
            self.options.base = base.extract()?;
        }
        if let Some(name) = given.take("dtype")? {
            self.take_type(py, operation, &name)?;
        }
        let factor = given.take("factor")?;
        given.finish(operation)?;
        Ok(factor)
    }

    /// A number, or a buffer of one element, as an element of the call's type.
    fn element_of(&self, py: Python<'_>, operation: &str, value: &Bound<'_, PyAny>) -> PyResult<[u8; 8]> {
        let data_type = self.options.data_type;
        let mut element = [0; 8];
        if value.is_instance_of::<PyFloat>() || value.is_instance_of::<PyInt>() {
            let number: f64 = value.extract()?;
            match data_type {
                GLOO_RS_FLOAT32 => element[..4].copy_from_slice(&(number as f32).to_ne_bytes()),
                GLOO_RS_FLOAT64 => element = number.to_ne_bytes(),
                _ => {
                    let message =
                        "factor: a number is for float32 and float64; for other types, pass an array of one element";
                    return Err(invalid(py, operation, message));
                }
            }
            return Ok(element);
        }
        let memory = Memory::of(value, Access::Read, operation, "factor")?;
        if (memory.data_type, memory.elements()) != (data_type, 1) || memory.bytes > element.len() {
            return Err(invalid(py, operation, "factor: it must be one element of the type of the buffers"));
        }
        // SAFETY: the memory has so many bytes, and both are apart.
        unsafe { element.as_mut_ptr().copy_from_nonoverlapping(memory.address.cast(), memory.bytes) };
        Ok(element)
    }

    /// Takes the buffers' bytes for elements of the type of this name.
    fn take_type(&mut self, py: Python<'_>, operation: &str, name: &Bound<'_, PyAny>) -> PyResult<()> {
        let data_type = type_of_name(py, name.extract()?)?;
        for memory in self.input.iter_mut().chain(&mut self.input_blocks) {
            memory.take_as(py, data_type, operation, "input")?;
        }
        for memory in self.output.iter_mut().chain(&mut self.output_blocks) {
            memory.take_as(py, data_type, operation, "out")?;
        }
        Ok(())
    }

    fn set_type(&mut self, py: Python<'_>, operation: &str) -> PyResult<()> {
        let inputs = self.input.iter().chain(&self.input_blocks);
        let mut types = inputs.chain(self.output.iter().chain(&self.output_blocks));
        let Some(&Memory { data_type, element_bytes, .. }) = types.next() else { return Ok(()) };
        if types.any(|other| (other.data_type, other.element_bytes) != (data_type, element_bytes)) {
            return Err(invalid(py, operation, "the buffers have elements of different types"));
        }
        if data_type != GLOO_RS_DATA_TYPE_UNSET {
            self.options.data_type = data_type;
            return Ok(());
        }
        let combines = [GLOO_RS_ALLREDUCE, GLOO_RS_REDUCE, GLOO_RS_REDUCE_SCATTER, GLOO_RS_SCAN, GLOO_RS_EXSCAN]
            .contains(&self.kind);
        if combines {
            let message =
                "the library has no arithmetic for elements of this type; dtype= names the type to take them for";
            return Err(invalid(py, operation, message));
        }
        self.options.element_bytes = element_bytes;
        Ok(())
    }

    /// The count of the options, by the lengths of the buffers.
    fn set_counts(&mut self, py: Python<'_>, operation: &str, place: Place, at_root: bool) -> PyResult<()> {
        let (rank, size) = (place.rank as usize, place.size as usize);
        let of = |one: &Option<Memory>, blocks: &[Memory]| match one {
            Some(memory) => Some(memory.elements()),
            None if blocks.is_empty() => None,
            None => Some(blocks.iter().map(Memory::elements).sum()),
        };
        let input = of(&self.input, &self.input_blocks);
        let output = of(&self.output, &self.output_blocks);
        // The buffer with a block for each rank, or the only one.
        let whole_in = input.or(output).unwrap_or(0);
        let whole_out = output.or(input).unwrap_or(0);
        let expect = |name: &str, have: Option<usize>, needed: usize| match have {
            Some(have) if have != needed => {
                Err(invalid(py, operation, &format!("{name} has {have} elements, but the call needs {needed}")))
            }
            _ => Ok(()),
        };
        let share = |name: &str, whole: usize, blocks: usize| {
            if blocks != 0 && whole.is_multiple_of(blocks) {
                return Ok(whole / blocks);
            }
            Err(invalid(py, operation, &format!("{name} has {whole} elements, which are not {blocks} equal blocks")))
        };
        let counts = |name: &str, counts: &Option<Vec<usize>>| match counts {
            Some(counts) if counts.len() == size => Ok((counts[rank], counts.iter().sum::<usize>())),
            Some(counts) => {
                Err(invalid(py, operation, &format!("{name} has {} numbers, but there are {size} ranks", counts.len())))
            }
            None => Err(PyTypeError::new_err(format!("{operation}: {name} is missing"))),
        };
        let recv_counts = || counts("recv_counts", &self.lists.recv_counts);
        let send_counts = || counts("send_counts", &self.lists.send_counts);
        self.options.count = match self.kind {
            GLOO_RS_BARRIER => 0,
            GLOO_RS_ALLREDUCE | GLOO_RS_SCAN | GLOO_RS_EXSCAN | GLOO_RS_REDUCE => {
                expect("out", output, whole_in)?;
                whole_in
            }
            GLOO_RS_BROADCAST => whole_in,
            GLOO_RS_REDUCE_SCATTER => {
                let in_place = input.is_none();
                if self.lists.recv_counts.is_some() {
                    let (mine, sum) = recv_counts()?;
                    expect("input", Some(whole_in), sum)?;
                    expect("out", output.filter(|_| !in_place), mine)?;
                    0
                } else {
                    let mine = share("input", whole_in, size)?;
                    expect("out", output.filter(|_| !in_place), mine)?;
                    mine
                }
            }
            GLOO_RS_GATHER if !at_root => whole_in,
            GLOO_RS_ALLGATHER | GLOO_RS_GATHER => {
                let mine = share("out", whole_out, size)?;
                expect("input", input, mine)?;
                mine
            }
            GLOO_RS_GATHERV if !at_root => whole_in,
            GLOO_RS_ALLGATHERV | GLOO_RS_GATHERV => {
                let (mine, sum) = recv_counts()?;
                expect("out", output, sum)?;
                expect("input", input, mine)?;
                0
            }
            GLOO_RS_SCATTER | GLOO_RS_SCATTERV if !at_root => whole_out,
            GLOO_RS_SCATTER => {
                let mine = share("input", whole_in, size)?;
                expect("out", output.filter(|_| input.is_some()), mine)?;
                mine
            }
            GLOO_RS_SCATTERV => {
                let (mine, sum) = send_counts()?;
                expect("input", Some(whole_in), sum)?;
                expect("out", output.filter(|_| input.is_some()), mine)?;
                0
            }
            GLOO_RS_ALLTOALL => {
                expect("out", output, whole_in)?;
                share("input", whole_in, size)?
            }
            GLOO_RS_ALLTOALLV => {
                expect("input", input, send_counts()?.1)?;
                expect("out", output, recv_counts()?.1)?;
                0
            }
            _ => {
                expect("out", output, whole_in)?;
                share("input", whole_in, self.options.destinations)?
            }
        };
        let count = self.options.count;
        for (name, blocks, counts) in [
            ("input", &self.input_blocks, self.lists.send_counts.as_ref().or(self.lists.recv_counts.as_ref())),
            ("out", &self.output_blocks, self.lists.recv_counts.as_ref()),
        ] {
            for (rank, block) in blocks.iter().enumerate() {
                let needed = counts.and_then(|counts| counts.get(rank)).copied().unwrap_or(count);
                expect(&format!("{name}[{rank}]"), Some(block.elements()), needed)?;
            }
        }
        Ok(())
    }

    /// The buffers of a list with one for each rank.
    fn blocks_of(
        &self,
        py: Python<'_>,
        place: Place,
        list: &Bound<'_, PyAny>,
        access: Access,
        operation: &str,
        name: &str,
    ) -> PyResult<Vec<Memory>> {
        let takes_lists = matches!(
            (self.kind, access),
            (GLOO_RS_ALLTOALL | GLOO_RS_ALLTOALLV, _)
                | (GLOO_RS_REDUCE_SCATTER | GLOO_RS_SCATTER | GLOO_RS_SCATTERV, Access::Read)
                | (GLOO_RS_ALLGATHER | GLOO_RS_ALLGATHERV | GLOO_RS_GATHER | GLOO_RS_GATHERV, Access::Write)
        );
        if !takes_lists {
            let message = format!("{name} is a list; here the call takes one buffer");
            return Err(invalid(py, operation, &message));
        }
        // The list as it is at one time: other threads may change it.
        let blocks = list.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        if blocks.len() != place.size as usize {
            let message = format!("{name} has {} buffers, but there are {} ranks", blocks.len(), place.size);
            return Err(invalid(py, operation, &message));
        }
        let block = |(rank, block)| Memory::of(block, access, operation, &format!("{name}[{rank}]"));
        blocks.iter().enumerate().map(block).collect()
    }

    /// Calls `function` with complete options.
    pub fn with_options<T>(
        &mut self,
        function: impl FnOnce(gloo_rs_collective_t, &gloo_rs_collective_options_t) -> T,
    ) -> T {
        fn list<T>(list: &Option<Vec<T>>) -> (*const T, usize) {
            list.as_ref().map_or((std::ptr::null(), 0), |list| (list.as_ptr(), list.len()))
        }
        let options = &mut self.options;
        let input = self.input.as_ref().map(|memory| memory.address.cast_const());
        let output = self.output.as_ref().map(|memory| memory.address);
        (options.inputs, options.num_inputs) = list_of_one(&input);
        let (outputs, num_outputs) = list_of_one(&output);
        (options.outputs, options.num_outputs) = (outputs.cast(), num_outputs);
        let addresses = |blocks: &[Memory]| blocks.iter().map(|block| block.address).collect::<Vec<_>>();
        let (input_blocks, output_blocks) = (addresses(&self.input_blocks), addresses(&self.output_blocks));
        if !input_blocks.is_empty() {
            (options.inputs, options.num_inputs) = (input_blocks.as_ptr().cast(), input_blocks.len());
        }
        if !output_blocks.is_empty() {
            (options.outputs, options.num_outputs) = (output_blocks.as_ptr().cast(), output_blocks.len());
        }
        let lists = &self.lists;
        let (send, recv) = (list(&lists.send_counts), list(&lists.recv_counts));
        (options.send_counts, options.recv_counts, options.num_counts) = (send.0, recv.0, send.1.max(recv.1));
        (options.groups, options.num_groups) = list(&lists.groups);
        (options.dims, options.num_dims) = list(&lists.dims);
        options.factor = lists.factor.as_ref().map_or(std::ptr::null(), |element| element.as_ptr().cast());
        options.order = lists.order.as_ref().map_or(std::ptr::null(), |order| order.as_ptr());
        options.algorithm = lists.algorithm.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
        function(self.kind, options)
    }

    /// Makes the call. `is_alone`: there are no other ranks to wait for.
    pub fn run(&mut self, py: Python<'_>, context: &Handle<gloo_rs_context_t>, is_alone: bool) -> PyResult<()> {
        self.with_options(|kind, options| {
            // SAFETY: the options and what they point to live until the call returns, and the handle is the context's.
            let call = || unsafe { gloo_rs_collective(context.get(), kind, options) };
            if is_alone { check(py, detached(py, call)) } else { waiting(py, context, call) }
        })
    }
}

/// Whether an argument is a list of buffers.
fn is_list(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>()
}

/// One pointer as a list.
fn list_of_one<T>(pointer: &Option<T>) -> (*const T, usize) {
    pointer.as_ref().map_or((std::ptr::null(), 0), |pointer| (std::ptr::from_ref(pointer), 1))
}

fn defaults() -> gloo_rs_collective_options_t {
    // SAFETY: integers and pointers, which may all be zero; the function writes no more than the size.
    unsafe {
        let mut options: gloo_rs_collective_options_t = std::mem::zeroed();
        gloo_rs_collective_options_init(&mut options, size_of::<gloo_rs_collective_options_t>());
        options
    }
}
