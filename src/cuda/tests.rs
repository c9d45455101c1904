//! Runs every kernel, by the interpreter of PTX, and compares the results with those of the host's, bit for bit.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::kernels::{Arguments, BLOCK_THREADS, Kernel, MAX_INPUTS, blocks, ptx};
use crate::reduce::{self, Stores};
use crate::testing::cuda::ptx::{AddressMap, Error, Geometry, Module, Order};
use crate::testing::reductions::{Random, quotient, reference, specials, supported};
use crate::testing::tier::Tier;
use crate::types::DataType::{self, *};
use crate::types::ReduceOp;

fn text() -> &'static str {
    include_str!("kernels.ptx")
}

#[test]
fn the_library_contains_the_text() {
    assert!(ptx().unwrap() == [text().as_bytes(), &[0]].concat(), "make it anew: scripts/ptx.sh write");
}

static MODULE: LazyLock<Module> = LazyLock::new(|| Module::parse(text()).unwrap());

/// Buffers in the memory of a device, each a region of its own with nothing beside it.
struct Buffers {
    contents: Vec<Vec<u8>>,
    addresses: Vec<u64>,
    map: AddressMap,
}

impl Buffers {
    /// Each buffer lies at its offset behind a multiple of 16.
    fn new(contents: Vec<Vec<u8>>, offsets: &[usize]) -> Self {
        let mut buffers = Self { contents, addresses: Vec::new(), map: AddressMap::default() };
        for (i, (content, &offset)) in buffers.contents.iter_mut().zip(offsets).enumerate() {
            let address = 0x7F00_0000_0000 + ((i as u64) << 32) + offset as u64;
            // SAFETY: the buffer is there as long as the map, its length does not change, and it is accessed only while
            // no kernel runs.
            unsafe { buffers.map.insert(address, content.as_mut_ptr(), content.len() as u64) }.unwrap();
            buffers.addresses.push(address);
        }
        buffers
    }

    fn launch(&self, module: &Module, kernel: Kernel, arguments: &Arguments, how: How) -> Result<(), Error> {
        // SAFETY: the struct has no padding, and any bytes may be read.
        let bytes =
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(arguments).cast::<u8>(), size_of::<Arguments>()) };
        module.kernel(&kernel.name()).unwrap().launch(&self.map, how.geometry, how.order, &[bytes])
    }
}

/// How the threads of a launch run, on which nothing may depend.
#[derive(Clone, Copy, Debug)]
struct How {
    geometry: Geometry,
    order: Order,
}

/// A few threads, fewer and more than there are vectors.
const HOWS: [How; 4] = [
    How { geometry: Geometry { blocks: 1, threads: 3 }, order: Order::Forward },
    How { geometry: Geometry { blocks: 2, threads: 2 }, order: Order::Backward },
    How { geometry: Geometry { blocks: 1, threads: 1 }, order: Order::Forward },
    How { geometry: Geometry { blocks: 3, threads: 7 }, order: Order::Backward },
];

/// A reduction with the host's result.
struct Case {
    dtype: DataType,
    op: ReduceOp,
    inputs: Vec<Vec<u8>>,
    expected: Vec<u8>,
}

/// Where the result is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Separate,
    /// In the buffer of this input.
    Input(usize),
}

impl Case {
    fn new((dtype, op): (DataType, ReduceOp), inputs: Vec<Vec<u8>>) -> Self {
        let mut expected = vec![0; inputs[0].len()];
        let pointers: Vec<_> = inputs.iter().map(|input| input.as_ptr()).collect();
        let count = expected.len() / dtype.size();
        // SAFETY: all buffers have `count` elements, and the result is separate from the inputs.
        unsafe {
            reduce::kernel_n(dtype, op).unwrap().run(expected.as_mut_ptr(), &pointers, count, Stores::Cached);
        }
        Self { dtype, op, inputs, expected }
    }

    fn random(random: &mut Random, pair: (DataType, ReduceOp), inputs: usize, count: usize) -> Self {
        let specials = specials(pair.0);
        Self::new(pair, (0..inputs).map(|_| random.elements(pair.0, &specials, count)).collect())
    }

    /// Runs the kernel with the result at `offsets[0]` and the inputs at the others.
    fn check(&self, offsets: &[usize], place: Place, how: How) {
        let bytes = self.expected.len();
        let mut contents = vec![vec![0x5A; bytes]];
        contents.extend(self.inputs.iter().cloned());
        let mut initial = contents.clone();
        let buffers = Buffers::new(contents, offsets);
        let target = match place {
            Place::Separate => 0,
            Place::Input(input) => input + 1,
        };
        let kernel = Kernel::reduction(self.dtype, self.op).unwrap();
        let count = bytes / self.dtype.size();
        let arguments = kernel.reduce(buffers.addresses[target], &buffers.addresses[1..], count);
        let context = || {
            let (dtype, op, number) = (self.dtype, self.op, self.inputs.len());
            format!("{dtype} {op}: {number} inputs of {count} elements at {offsets:?}, result {place:?}, {how:?}")
        };
        buffers.launch(&MODULE, kernel, &arguments, how).unwrap_or_else(|error| panic!("{}: {error}", context()));
        initial[target].clone_from(&self.expected);
        if let Some(wrong) = (0..initial.len()).find(|&i| initial[i] != buffers.contents[i]) {
            let size = self.dtype.size();
            let mut elements = buffers.contents[wrong].chunks(size).zip(initial[wrong].chunks(size));
            let at = elements.position(|(got, want)| got != want).unwrap() * size;
            let inputs: Vec<_> = self.inputs.iter().map(|input| &input[at..at + size]).collect();
            let [got, want] = [&buffers.contents[wrong], &initial[wrong]].map(|content| &content[at..at + size]);
            panic!("{}: buffer {wrong}, byte {at}: {got:02X?}, not {want:02X?}, of {inputs:02X?}", context());
        }
    }
}

/// Offsets within 16 bytes that the type's alignment allows.
fn random_offsets(random: &mut Random, dtype: DataType, number: usize) -> Vec<usize> {
    let align = dtype.align();
    // Half of the time all pointers are equal modulo 16, so that there are vectors.
    let common = (random.next() & 1 == 0).then(|| random.below(16 / align) * align);
    (0..number).map(|_| common.unwrap_or_else(|| random.below(16 / align) * align)).collect()
}

/// All pairs, of which those whose kernel another one has had are left out.
fn pairs() -> Vec<(DataType, ReduceOp)> {
    let mut seen = BTreeSet::new();
    supported().filter(|&(dtype, op)| seen.insert(Kernel::reduction(dtype, op).unwrap().name())).collect()
}

#[test]
fn the_table_names_all_kernels() {
    let mut named = BTreeSet::from([Kernel::mean().name()]);
    for (&dtype, &op) in DataType::ALL.iter().flat_map(|dtype| ReduceOp::ALL.iter().map(move |op| (dtype, op))) {
        assert_eq!(Kernel::reduction(dtype, op).is_some(), op.supports(dtype), "{dtype} {op}");
        named.extend(Kernel::reduction(dtype, op).map(Kernel::name));
    }
    for &dtype in DataType::ALL {
        assert_eq!(Kernel::division(dtype).is_some(), ReduceOp::Average.supports(dtype), "{dtype}");
        named.extend(Kernel::division(dtype).map(Kernel::name));
    }
    let there: BTreeSet<String> = MODULE.names().map(str::to_owned).collect();
    assert_eq!(named, there);
    assert_eq!(Kernel::reduction(Int32, ReduceOp::Average).unwrap().name(), "gloo_rs_reduce_uint32_sum");
    assert_eq!(Kernel::reduction(Bool, ReduceOp::Min).unwrap().name(), "gloo_rs_reduce_bool_and");
}

/// The oldest driver and the oldest GPU that the library supports take it, and a launch is what the kernels expect.
#[test]
fn the_module_is_what_the_table_says() {
    assert!(MODULE.version <= (8, 1), "{:?}", MODULE.version);
    assert_eq!(MODULE.target, "sm_70");
    for name in MODULE.names() {
        assert_eq!(MODULE.kernel(name).unwrap().parameters, [size_of::<Arguments>()], "{name}");
        assert_eq!(MODULE.kernel(name).unwrap().most_threads, BLOCK_THREADS, "{name}");
    }
}

#[test]
fn blocks_by_example() {
    let all = [(0, 1), (1, 1), (4096, 1), (4097, 2), (1 << 20, 256), (1 << 30, 80 * 8), (usize::MAX, 80 * 8)];
    for (bytes, wanted) in all {
        assert_eq!(blocks(bytes, 80), wanted, "{bytes}");
    }
    assert_eq!(blocks(1 << 30, 0), 1);
}

#[test]
fn every_length_and_number_of_inputs() {
    let mut random = Random(21);
    let step = Tier::from_environment().of(9, 1, 1);
    for (i, pair) in supported().enumerate() {
        for number in 1..=MAX_INPUTS {
            for count in ((i + number) % step..=40).step_by(step).chain([131, 259]) {
                let case = Case::random(&mut random, pair, number, count);
                for place in [Place::Separate, Place::Input(count % number)] {
                    let how = HOWS[random.below(HOWS.len())];
                    case.check(&random_offsets(&mut random, pair.0, number + 1), place, how);
                }
            }
        }
    }
}

/// One pointer after the other at each offset, the others at multiples of 16; and all at the same offset.
#[test]
fn every_alignment_of_each_pointer() {
    let mut random = Random(22);
    let counts: &[usize] = Tier::from_environment().of(&[37], &[37, 16, 5], &[37, 16, 5]);
    for pair in pairs() {
        for (number, &count) in (1..=3).flat_map(|number| counts.iter().map(move |count| (number, count))) {
            let case = Case::random(&mut random, pair, number, count);
            for offset in (0..16).step_by(pair.0.align()) {
                let how = HOWS[random.below(HOWS.len())];
                for pointer in 0..=number {
                    let mut offsets = vec![0; number + 1];
                    offsets[pointer] = offset;
                    case.check(&offsets, Place::Separate, how);
                }
                case.check(&vec![offset; number + 1], Place::Separate, how);
                case.check(&vec![offset; number + 1], Place::Input(offset % number), how);
            }
        }
    }
}

#[test]
fn the_result_may_replace_any_input() {
    let mut random = Random(23);
    for pair in pairs() {
        for number in 1..=MAX_INPUTS {
            let case = Case::random(&mut random, pair, number, 64 / pair.0.size() + 3);
            for input in 0..number {
                let how = HOWS[random.below(HOWS.len())];
                case.check(&random_offsets(&mut random, pair.0, number + 1), Place::Input(input), how);
            }
        }
    }
}

#[test]
fn the_result_may_replace_all_inputs() {
    let mut random = Random(24);
    for (dtype, op) in pairs() {
        let elements = random.elements(dtype, &specials(dtype), 45);
        let case = Case::new((dtype, op), vec![elements.clone(); 3]);
        let buffers = Buffers::new(vec![elements], &[dtype.align()]);
        let kernel = Kernel::reduction(dtype, op).unwrap();
        let arguments = kernel.reduce(buffers.addresses[0], &[buffers.addresses[0]; 3], 45);
        buffers.launch(&MODULE, kernel, &arguments, HOWS[0]).unwrap();
        assert_eq!(buffers.contents[0], case.expected, "{dtype} {op}");
    }
}

/// All pairs of special values, by the reference that the host's kernels are compared with.
#[test]
fn special_values_give_the_bits_of_the_reference() {
    for (dtype, op) in supported() {
        let specials = specials(dtype);
        let specials: Vec<_> = specials.iter().step_by(if specials.len() > 30 { 3 } else { 1 }).collect();
        let pairs = || specials.iter().flat_map(|&left| specials.iter().map(move |&right| (left, right)));
        let left: Vec<u8> = pairs().flat_map(|(left, _)| left.clone()).collect();
        let right: Vec<u8> = pairs().flat_map(|(_, right)| right.clone()).collect();
        let bytes = left.len();
        let buffers = Buffers::new(vec![vec![0; bytes], left, right], &[0, 0, 0]);
        let kernel = Kernel::reduction(dtype, op).unwrap();
        let arguments = kernel.reduce(buffers.addresses[0], &buffers.addresses[1..], bytes / dtype.size());
        buffers.launch(&MODULE, kernel, &arguments, HOWS[3]).unwrap();
        for (got, (left, right)) in buffers.contents[0].chunks(dtype.size()).zip(pairs()) {
            let want = reference(dtype, op, left, right);
            assert_eq!(got, want, "{dtype} {op}: {left:02X?} and {right:02X?}");
        }
    }
}

/// Every float of 16 bits with special values: all roundings, from and to subnormal numbers, to infinity, and of NaNs.
#[test]
fn all_16_bit_floats() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let step = Tier::from_environment().of(9, 1, 1);
    for dtype in [Float16, Bfloat16] {
        for op in [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max] {
            for special in specials(dtype).iter().step_by(step) {
                let case = Case::new((dtype, op), vec![all.clone(), special.repeat(1 << 16)]);
                case.check(&[0; 3], Place::Separate, HOWS[0]);
            }
        }
    }
}

/// Sums whose exact value is half-way between two floats, and around it.
#[test]
fn ties_are_rounded_to_even() {
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let halves =
        |values: &[f32]| values.iter().flat_map(|&value| half::f16::from_f32(value).to_le_bytes()).collect::<Vec<u8>>();
    let check = |dtype, inputs: [Vec<u8>; 3], expected: Vec<u8>| {
        let case = Case::new((dtype, ReduceOp::Sum), inputs.to_vec());
        assert_eq!(case.expected, expected, "{dtype}");
        case.check(&[0; 4], Place::Separate, HOWS[0]);
    };
    let big = (1 << 24) as f32;
    check(Float32, [&[big, big + 2.0], &[1.0, 1.0], &[1.0, 0.0]].map(|v| floats(v)), floats(&[big, big + 4.0]));
    check(Float16, [&[2048.0, 2050.0], &[1.0, 1.0], &[1.0, 0.0]].map(|v| halves(v)), halves(&[2048.0, 2052.0]));
}

#[test]
fn divisions_are_those_of_the_host() {
    let divisors = [
        1,
        2,
        3,
        7,
        127,
        128,
        129,
        255,
        65535,
        65537,
        (1 << 31) - 1,
        1 << 31,
        1 << 32,
        (1 << 53) + 1,
        1 << 63,
        u64::MAX,
    ];
    let mut random = Random(25);
    for &dtype in DataType::ALL.iter().filter(|&&dtype| ReduceOp::Average.supports(dtype)) {
        let kernel = Kernel::division(dtype).unwrap();
        for (i, divisor) in divisors.into_iter().enumerate() {
            let count = 100 + i;
            let elements = random.elements(dtype, &specials(dtype), count);
            let offset = i * dtype.align() % 16;
            let buffers = Buffers::new(vec![elements.clone(), vec![0; elements.len()]], &[offset, i % 2 * offset]);
            let [in_place, separate] = buffers.addresses[..] else { unreachable!() };
            for into in [separate, in_place] {
                let arguments = kernel.divide(into, in_place, divisor, count);
                buffers.launch(&MODULE, kernel, &arguments, HOWS[i % HOWS.len()]).unwrap();
            }
            let mut expected = elements.clone();
            // SAFETY: the buffer has `count` elements.
            unsafe { reduce::divide(dtype).unwrap()(expected.as_mut_ptr(), count, divisor) };
            for content in &buffers.contents {
                assert_eq!(*content, expected, "{dtype} / {divisor}");
            }
            for (got, element) in expected.chunks(dtype.size()).zip(elements.chunks(dtype.size())) {
                assert_eq!(got, quotient(dtype, element, divisor), "{dtype} {element:02X?} / {divisor}");
            }
        }
    }
}

#[test]
fn means_are_those_of_the_host() {
    let mut random = Random(26);
    let kernel = Kernel::mean();
    for number in 1..=MAX_INPUTS {
        for most in [1, 4, 1 << 20] {
            let contributions: Vec<u32> = (0..number).map(|_| 1 + random.below(most) as u32).collect();
            for (count, how) in [0, 1, 8, 77].into_iter().zip(HOWS) {
                let inputs: Vec<_> = (0..number).map(|_| random.elements(Float16, &specials(Float16), count)).collect();
                let mut expected = inputs[0].clone();
                if number > 1 {
                    let pointers: Vec<_> = inputs.iter().map(|input| input.as_ptr()).collect();
                    let mean = reduce::mean();
                    // SAFETY: all buffers have `count` elements, and the result is separate from the inputs.
                    unsafe { reduce::mean_n(mean, expected.as_mut_ptr(), &pointers, &contributions, count) };
                }
                let offsets = random_offsets(&mut random, Float16, number);
                let buffers = Buffers::new(inputs, &offsets);
                let target = random.below(number);
                let arguments = kernel.average(buffers.addresses[target], &buffers.addresses, &contributions, count);
                buffers.launch(&MODULE, kernel, &arguments, how).unwrap();
                assert_eq!(buffers.contents[target], expected, "{contributions:?}, {count} elements");
            }
        }
    }
}

/// A block as large as a launch has it, and more blocks than there is work for.
#[test]
fn whole_blocks() {
    let mut random = Random(27);
    let how = How { geometry: Geometry { blocks: 3, threads: BLOCK_THREADS }, order: Order::Backward };
    for pair in [(Int8, ReduceOp::Sum), (Float32, ReduceOp::Sum), (Complex128, ReduceOp::Product)] {
        for count in [7, 5000] {
            Case::random(&mut random, pair, 2, count).check(&[0; 3], Place::Separate, how);
        }
    }
}

/// What a launch on 21 elements fails with, of a kernel in whose text `from` is replaced by `to`, once.
fn failure(from: &str, to: &str, offsets: [usize; 3], bytes: usize) -> Option<String> {
    let kernel = Kernel::reduction(Float32, ReduceOp::Sum).unwrap();
    let (before, rest) = text().split_at(text().find(&format!("{}(", kernel.name())).unwrap());
    assert!(rest.contains(from), "{from}");
    let module = Module::parse(&format!("{before}{}", rest.replacen(from, to, 1))).unwrap();
    let buffers = Buffers::new(vec![vec![0; bytes]; 3], &offsets);
    let arguments = kernel.reduce(buffers.addresses[0], &buffers.addresses[1..], 21);
    buffers.launch(&module, kernel, &arguments, HOWS[0]).err().map(|error| error.to_string())
}

#[test]
fn kernels_that_access_what_they_must_not_are_found() {
    assert_eq!(failure("ret", "ret", [0; 3], 84), None);
    // Buffers that are shorter than the launch says: at the end of the loop over vectors, and of that over elements.
    for (bytes, offsets, access) in [(63, [0; 3], "reads 16"), (80, [0; 3], "reads 4"), (83, [4, 0, 0], "reads 4")] {
        let error = failure("ret", "ret", offsets, bytes).unwrap();
        assert!(error.starts_with("gloo_rs_reduce_float32_sum, block 0, thread "), "{error}");
        assert!(error.contains(", line ") && error.contains("ld.global."), "{error}");
        assert!(error.contains(access) && error.contains("outside of the device's memory"), "{error}");
    }
    // Twice as many vectors as there are.
    let vectors =
        text().split("gloo_rs_reduce_float32_sum(").nth(1).unwrap().lines().find(|line| line.contains("shr.u64"));
    let vectors = vectors.unwrap();
    let error = failure(vectors, &vectors.replace(", 2;", ", 1;"), [0; 3], 84).unwrap();
    assert!(error.contains("reads 16 bytes") && error.contains("outside of the device's memory"), "{error}");
    // It is not asked whether all pointers are equal modulo 16.
    let error = failure(", 15;", ", 0;", [0, 0, 4], 84).unwrap();
    assert!(error.contains("reads 16 bytes") && error.contains("which is not a multiple of 16"), "{error}");
}

proptest! {
    #[test]
    fn random_bits(
        pair in prop::sample::select(supported().collect::<Vec<_>>()),
        number in 1..=MAX_INPUTS,
        place in 0..=MAX_INPUTS,
        seed in any::<u64>(),
        how in prop::sample::select(HOWS.to_vec()),
        content in prop::collection::vec(any::<[u8; MAX_INPUTS]>(), 0..700),
    ) {
        let whole = content.len() / pair.0.size() * pair.0.size();
        let inputs = (0..number).map(|k| content[..whole].iter().map(|bytes| bytes[k]).collect()).collect();
        let place = if place < number { Place::Input(place) } else { Place::Separate };
        let offsets = random_offsets(&mut Random(seed), pair.0, number + 1);
        Case::new(pair, inputs).check(&offsets, place, how);
    }
}
