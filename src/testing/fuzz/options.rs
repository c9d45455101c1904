//! Fuzz bodies: options structs of any bytes, and collective calls with any numbers and pointers that a caller may
//! pass.

use std::sync::OnceLock;

use super::options::DEFAULTS;
use super::*;
use crate::ffi::context::{gloo_rs_context_create, gloo_rs_context_options_t};
use crate::ffi::device::{
    gloo_rs_device_create, gloo_rs_device_destroy, gloo_rs_device_options_init, gloo_rs_device_options_t,
};
use crate::ffi::enumeration::from_number;
use crate::ffi::options::{self, Options};
use crate::ffi::status::GLOO_RS_OK;
use crate::ffi::store_callbacks::gloo_rs_store_callbacks_t;
use crate::testing::fuzz::Input;

/// A struct is read without a look past its `struct_size`, and refused exactly if that is too little, too much, or no
/// whole number of words, or if a word behind those that this version knows is not zero. `init` writes `struct_size`
/// bytes and no more, of a size that is too much only the struct's own.
fn any_struct<T: Options>(size: usize, data: &[u8]) {
    let words = size.min(options::MAX_STRUCT_BYTES).div_ceil(size_of::<usize>());
    // The block has not one word more, so that a sanitizer detects reads past the end.
    let mut block = vec![0usize; words.max(1)];
    let bytes = block.iter_mut().zip(data.chunks_exact(size_of::<usize>()));
    bytes.for_each(|(word, bytes)| *word = usize::from_ne_bytes(bytes.try_into().expect("a word")));
    block[0] = size;
    let acceptable = (T::REQUIRED..=options::MAX_STRUCT_BYTES).contains(&size) && size.is_multiple_of(align_of::<T>());
    let later = block.iter().take(size / size_of::<usize>()).skip(size_of::<T>() / size_of::<usize>());
    let known = later.clone().all(|word| *word == 0);
    // SAFETY: the block has `size` bytes. If `size` exceeds the maximum, `read` refuses it and reads only the size.
    let read = unsafe { options::read::<T>(block.as_ptr().cast()) };
    assert_eq!(read.is_ok(), acceptable && known);
    let mut block = vec![usize::MAX; words + 1];
    // SAFETY: the block has `size` bytes. If `size` exceeds the maximum, `init` writes only `T`, which fits.
    unsafe { options::init::<T>(block.as_mut_ptr().cast(), size) };
    let begun = size >= size_of::<usize>();
    // SAFETY: words are made of bytes.
    let (_, bytes, _) = unsafe { block.align_to::<u8>() };
    let written = if size > options::MAX_STRUCT_BYTES { size_of::<T>() } else { size };
    assert!(bytes[if begun { written } else { 0 }..].iter().all(|b| *b == 0xff), "written past the end");
    if begun {
        assert_eq!(block[0], size);
        // SAFETY: the block has `size` bytes. If `size` exceeds the maximum, `read` refuses it and reads only the size.
        assert_eq!(unsafe { options::read::<T>(block.as_ptr().cast()) }.is_ok(), acceptable);
    }
}

/// A context of one rank, and rank 1 of three that were never connected.
fn contexts() -> [*mut gloo_rs_context_t; 2] {
    static CONTEXTS: OnceLock<[usize; 2]> = OnceLock::new();
    let made = CONTEXTS.get_or_init(|| {
        [(0, 1), (1, 3)].map(|(rank, size)| {
            let (mut device, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: the pointers are valid; the contexts are never destroyed.
            unsafe {
                let mut options: gloo_rs_device_options_t = std::mem::zeroed();
                gloo_rs_device_options_init(&mut options, size_of_val(&options));
                options.hostname = c"127.0.0.1".as_ptr();
                assert_eq!(gloo_rs_device_create(&options, &mut device), GLOO_RS_OK);
                assert_eq!(gloo_rs_context_create(device, rank, size, std::ptr::null(), &mut context), GLOO_RS_OK);
                gloo_rs_device_destroy(device);
            }
            context as usize
        })
    });
    made.map(|context| context as *mut gloo_rs_context_t)
}

const ARENA_WORDS: usize = 2048;
/// Elements that every buffer has room for, in each of at most four parts, in any type.
const ROOM: usize = 16;
const BUFFER_BYTES: usize = 4 * ROOM * 16;

/// Options structs and what they hold: never a crash, never a look at memory that the caller did not give.
pub fn options(data: &[u8]) {
    let mut input = Input(data);
    let _ = structs(&mut input);
    while call(&mut input).is_some() {}
}

fn structs(input: &mut Input<'_>) -> Option<()> {
    let which = input.below(4)?;
    let size = match input.byte()? {
        small @ ..=250 => usize::from(small),
        251 => 4096,
        252 => 4097,
        253 => usize::MAX,
        254 => isize::MAX as usize + 1,
        _ => usize::from_ne_bytes(input.array()?),
    };
    let check = [
        any_struct::<gloo_rs_collective_options_t>,
        any_struct::<gloo_rs_context_options_t>,
        any_struct::<gloo_rs_device_options_t>,
        any_struct::<gloo_rs_store_callbacks_t>,
    ][which];
    check(size, input.0);
    Some(())
}

/// A number of elements: one that buffers have room for, or one that no memory has room for.
fn count(input: &mut Input<'_>) -> Option<usize> {
    let byte = usize::from(input.byte()?);
    Some(if byte <= 240 { byte % (ROOM + 1) } else { usize::MAX >> (byte & 1) } - usize::from(byte == 255))
}

fn call(input: &mut Input<'_>) -> Option<()> {
    let mut arena = vec![0u128; ARENA_WORDS];
    let base = arena.as_mut_ptr().cast::<u8>();
    let pointers = |input: &mut Input<'_>| {
        let n = input.below(5)?;
        let pointer = |byte: u8| match byte {
            255 => std::ptr::null_mut(),
            254 => base.wrapping_add(1),
            // The buffers are mostly disjoint, sometimes not.
            _ => base.wrapping_add((usize::from(byte) * 512) % (ARENA_WORDS * 16 - BUFFER_BYTES) / 16 * 16),
        };
        (0..n).map(|_| input.byte().map(pointer)).collect::<Option<Vec<*mut u8>>>()
    };
    let (inputs, outputs) = (pointers(input)?, pointers(input)?);
    let send_counts: Vec<usize> = (0..input.below(5)?).map(|_| count(input)).collect::<Option<_>>()?;
    let recv_counts: Vec<usize> = (0..send_counts.len()).map(|_| count(input)).collect::<Option<_>>()?;
    let shape = input.byte()?;
    let null_if = |yes: bool, pointer: *const usize| if yes { std::ptr::null() } else { pointer };
    let algorithms = [c"", c"auto", c"ring", c"torus_2d", c"bcube", c"hierarchical", c"local", c"\xff"];
    let algorithm = if shape & 1 != 0 { std::ptr::null() } else { input.pick(&algorithms)?.as_ptr() };
    let tag = u64::from(u32::from_le_bytes(input.array()?)).rotate_right(1);
    let options = gloo_rs_collective_options_t {
        algorithm,
        tag,
        timeout_ms: input.pick(&[-1, -1, 0, 1, 1000, -2, i64::MAX, i64::MIN])?,
        max_segment_bytes: input.pick(&[0, 0, 1, 7, 4096, usize::MAX])?,
        data_type: from_number(input.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, u32::MAX])?),
        op: from_number(input.pick(&[0, 0, 1, 2, 3, 4, 5, 6, 7, 8, u32::MAX])?),
        inputs: if shape & 2 != 0 { std::ptr::null() } else { inputs.as_ptr().cast() },
        num_inputs: if shape & 4 != 0 { 0 } else { inputs.len() },
        outputs: if shape & 8 != 0 { std::ptr::null() } else { outputs.as_ptr().cast() },
        num_outputs: outputs.len(),
        root: input.pick(&[0, 0, 1, 2, 3, -1, i32::MAX, i32::MIN])?,
        count: count(input)?,
        send_counts: null_if(shape & 16 != 0, send_counts.as_ptr()),
        recv_counts: null_if(shape & 32 != 0, recv_counts.as_ptr()),
        num_counts: send_counts.len(),
        base: input.pick(&[0, 1, 2, 3, 64, usize::MAX])?,
        destinations: input.pick(&[0, 1, 2, 64, 65, usize::MAX])?,
        // The counts' memory, if the tag says so.
        groups: null_if(tag & 1 == 0, recv_counts.as_ptr()).cast(),
        num_groups: recv_counts.len(),
        dims: null_if(tag & 2 == 0, send_counts.as_ptr()),
        num_dims: send_counts.len(),
        // Bits that decide about nothing else yet.
        memory: from_number((tag >> 2 & 3) as u32),
        factor: if tag & 16 == 0 { std::ptr::null() } else { base.cast() },
        blocks: u64::from(tag & 32 != 0),
        ..DEFAULTS
    };
    let collective = input.pick(Collective::ALL)?;
    let context = contexts()[usize::from(shape >> 7)];
    // Most have some field that the collective does not use: that is looked at as well, but not enough.
    let refused = check_used(&options, collective).is_err();
    // SAFETY: buffers have room for four times the small counts; the large ones must be refused.
    let result = unsafe {
        handle::get(context, "context").and_then(|handle| run_options(handle.context()?, collective, &options))
    };
    if refused {
        // SAFETY: the buffers are those of the call above, and the context is never destroyed.
        assert_ne!(unsafe { gloo_rs_collective(context, from_number(collective as u32), &options) }, GLOO_RS_OK);
    }
    // SAFETY: as above; the request is started only if the plain call was possible.
    let made = unsafe {
        handle::get(context, "context").and_then(|handle| request(&handle.shared()?, collective, &options, false))
    };
    assert_eq!(made.is_ok(), result.is_ok() && !refused, "a request is refused where the call is, and only there");
    if let Ok(request) = made {
        request.start().and_then(|()| request.wait()).expect("as the plain call");
    }
    if let Err(error) = result {
        assert!(!error.message().contains("broken"), "a call that is wrong in itself broke the context: {error}");
        assert!(error.kind() != crate::error::ErrorKind::Internal, "{error}");
    }
    Some(())
}
