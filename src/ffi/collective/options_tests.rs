use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use crate::collective::Collective;
use crate::ffi::enumeration::from_number;
use crate::ffi::*;

unsafe extern "C" fn nothing(_: *mut c_void, _: *const c_void, _: *const c_void, _: usize, _: *mut c_void) -> i32 {
    0
}

/// Every field but the size, with a value that is not its default.
type Set = fn(&mut gloo_rs_collective_options_t);
const FIELDS: &[(&str, Set)] = &[
    ("algorithm", |options| options.algorithm = c"ring".as_ptr()),
    ("timeout_ms", |options| options.timeout_ms = 1),
    ("max_segment_bytes", |options| options.max_segment_bytes = 1),
    ("tag", |options| options.tag = 1),
    ("data_type", |options| options.data_type = MaybeUninit::new(GLOO_RS_INT8)),
    ("element_bytes", |options| options.element_bytes = 12),
    ("op", |options| options.op = MaybeUninit::new(GLOO_RS_MAX)),
    ("root", |options| options.root = 1),
    ("function", |options| options.function = Some(nothing)),
    ("user", |options| options.user = ptr::dangling_mut::<u64>().cast()),
    ("inputs", |options| options.inputs = ptr::dangling()),
    ("num_inputs", |options| options.num_inputs = 1),
    ("outputs", |options| options.outputs = ptr::dangling()),
    ("num_outputs", |options| options.num_outputs = 1),
    ("count", |options| options.count = 1),
    ("send_counts", |options| options.send_counts = ptr::dangling()),
    ("recv_counts", |options| options.recv_counts = ptr::dangling()),
    ("num_counts", |options| options.num_counts = 1),
    ("destinations", |options| options.destinations = 1),
    ("base", |options| options.base = 1),
    ("groups", |options| options.groups = ptr::dangling()),
    ("num_groups", |options| options.num_groups = 1),
    ("dims", |options| options.dims = ptr::dangling()),
    ("num_dims", |options| options.num_dims = 1),
    ("memory", |options| options.memory = MaybeUninit::new(GLOO_RS_MEMORY_DEVICE)),
    ("blocks", |options| options.blocks = 1),
    ("order", |options| options.order = c"ranks".as_ptr()),
    ("factor", |options| options.factor = ptr::dangling::<u64>().cast()),
];

/// By field, the collectives that its comment says it is used by.
fn documented() -> BTreeMap<String, Vec<Collective>> {
    let (_, text) = include_str!("options.rs").split_once("pub struct gloo_rs_collective_options_t {").unwrap();
    let (fields, _) = text.split_once("\n}").unwrap();
    let (mut comment, mut documented) = (String::new(), BTreeMap::new());
    for line in fields.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            comment.push_str(text);
            continue;
        }
        let Some(name) = line.strip_prefix("pub ").and_then(|rest| rest.split(':').next()) else { continue };
        let comment = std::mem::take(&mut comment);
        if ["struct_size", "reserved"].contains(&name) {
            continue;
        }
        let (_, users) = comment.rsplit_once(" Used by ").unwrap_or_else(|| panic!("{name} is used by nobody"));
        let users = users.strip_suffix('.').unwrap();
        let (all_but, names) = match users.strip_prefix("all but ") {
            _ if users == "all" => (true, ""),
            Some(names) => (true, names),
            None => (false, users),
        };
        let names: Vec<&str> = names.split(", ").filter(|name| !name.is_empty()).collect();
        for name in &names {
            assert!(Collective::ALL.iter().any(|c| c.name() == *name), "there is no collective {name}");
        }
        let uses = |c: &&Collective| names.contains(&c.name()) != all_but;
        documented.insert(name.to_owned(), Collective::ALL.iter().filter(uses).copied().collect());
    }
    documented
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes, and little of it is unsafe")]
fn a_field_is_refused_by_exactly_the_collectives_whose_use_of_it_is_not_documented() {
    let documented = documented();
    assert!(documented.keys().eq(BTreeMap::from_iter(FIELDS.iter().copied()).keys().copied()), "{documented:?}");
    for &collective in Collective::ALL {
        for (field, set) in FIELDS {
            let mut options = super::DEFAULTS;
            set(&mut options);
            // SAFETY: the context is NULL, which is refused before the pointers in the options are used.
            let status = unsafe { gloo_rs_collective(ptr::null_mut(), from_number(collective as u32), &options) };
            assert_eq!(status, GLOO_RS_ERROR_INVALID_ARGUMENT);
            // SAFETY: the string is valid until the next call fails on this thread.
            let message = unsafe { CStr::from_ptr(gloo_rs_last_error_message()) }.to_str().unwrap();
            let name = collective.name();
            let why = match documented[*field].contains(&collective) {
                true => "context is NULL".into(),
                false => format!("{name} does not use {field}: leave the field at its default"),
            };
            assert_eq!(message, format!("gloo_rs_collective({name}): {why}"));
        }
        // What a wrapper of MPI's arguments sets always.
        let options =
            gloo_rs_collective_options_t { root: 0, op: MaybeUninit::new(GLOO_RS_SUM), tag: 3, ..super::DEFAULTS };
        assert!(super::check_used(&options, collective).is_ok());
    }
}

#[test]
fn an_unset_collective_has_every_default() {
    let mut options = std::mem::MaybeUninit::<gloo_rs_collective_options_t>::uninit();
    // SAFETY: `init` fills all bytes.
    let options = unsafe {
        gloo_rs_collective_options_init(options.as_mut_ptr(), size_of::<gloo_rs_collective_options_t>());
        options.assume_init()
    };
    assert_eq!(options.timeout_ms, GLOO_RS_TIMEOUT_DEFAULT);
    for &collective in Collective::ALL {
        assert!(super::check_used(&options, collective).is_ok());
        let reserved = gloo_rs_collective_options_t { reserved: 1, ..options };
        let error = super::check_used(&reserved, collective).unwrap_err();
        assert_eq!(error.message(), "reserved is 1; it must be 0");
    }
}
