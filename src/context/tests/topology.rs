//! Collectives whose algorithms use the topology: hosts, or groups and grids given by the caller.

use std::sync::Barrier;

use super::*;
use crate::collective::{Collective, Shape};
use crate::rendezvous::InProcessStore;
use crate::sys::topology::{PRETENDED, Place, domain};
use crate::transport::Sharing;
use crate::tuner::Tuner;
use crate::tuner::model::Topology;
use crate::tuner::overrides::Overrides;
use crate::types::DataType;

/// An allreduce of this rank's number, with the groups and dims that `place` sets.
fn allreduce(context: &Context, algorithm: &str, place: impl Fn(Shape<'static>) -> Shape<'static>) -> Result<i64> {
    let (input, mut output) = (context.rank() as i64, [0i64; 5]);
    let input = [input; 5];
    let call = Call {
        inputs: &[input.as_ptr().cast()],
        outputs: &[output.as_mut_ptr().cast()],
        algorithm: Some(algorithm),
        ..Call::new(
            place(Shape::new(Collective::Allreduce, context.rank(), context.size(), input.len())),
            DataType::Int64,
        )
    };
    // SAFETY: the arrays are as long as the shape says and live until the call returns.
    unsafe { context.run(&call) }?;
    assert!(output.iter().all(|sum| *sum == output[0]));
    Ok(output[0])
}

const ALGORITHMS: [&str; 6] =
    ["hierarchical", "hierarchical_direct", "torus_2d", "torus_nd", "mesh_2d", "spanning_trees"];

#[test]
fn groups_are_the_hosts_unless_the_caller_says_otherwise() {
    let contexts = group(6);
    for context in &contexts {
        // It is set as if connecting had determined it.
        context.hosts.set([0, 1, 0, 1, 1, 2].into()).unwrap();
    }
    run(&contexts, |context| {
        for name in ALGORITHMS {
            assert_eq!(allreduce(context, name, |s| s).unwrap(), 15, "{name}");
            assert_eq!(allreduce(context, name, |s| Shape { groups: &[7, 7, 7, 8, 8, 8], ..s }).unwrap(), 15, "{name}");
            assert_eq!(allreduce(context, name, |s| Shape { dims: &[3, 2], ..s }).unwrap(), 15, "{name}");
        }
        // Passing the known hosts explicitly is the same call as passing none.
        let given: &[u32] = if context.rank() == 1 { &[0, 1, 0, 1, 1, 2] } else { &[] };
        assert_eq!(allreduce(context, "torus_2d", |s| Shape { groups: given, ..s }).unwrap(), 15);
        // Other algorithms ignore groups.
        let only_here: &[u32] = if context.rank() == 1 { &[0, 1, 0, 1, 1, 3] } else { &[] };
        assert_eq!(allreduce(context, "ring_segmented", |s| Shape { groups: only_here, ..s }).unwrap(), 15);
    });
}

#[test]
fn an_algorithm_that_cannot_run_is_named_and_what_has_selected_it() {
    let contexts = group(2);
    let named = allreduce(&contexts[0], "shared_flat", |s| s).unwrap_err();
    assert_eq!(named.kind(), ErrorKind::Unsupported, "{named}");
    assert!(
        named.message().contains("the algorithm shared_flat: ") && named.message().contains("GLOO_RS_SHM=0"),
        "{named}"
    );
    let overrides = Overrides::parse("allreduce:shared_slices").unwrap();
    let tuner = Tuner::new(Default::default(), overrides, Topology::one_host(2, 2), 1 << 20);
    contexts[1].tuners.agree(tuner, Sharing::Nothing);
    let selected = allreduce(&contexts[1], "auto", |s| s).unwrap_err();
    let says = "the algorithm shared_slices, which GLOO_RS_ALGORITHM of rank 0 names: ";
    assert!(selected.kind() == ErrorKind::Unsupported && selected.message().contains(says), "{selected}");
}

#[test]
fn hosts_are_known_once_connected() {
    let store = InProcessStore::new();
    let options = ContextOptions { timeout: Duration::from_secs(20), ..Default::default() };
    let contexts: Vec<_> = (0..3).map(|rank| Context::new(device(), rank, 3, &options).unwrap()).collect();
    assert!(contexts[0].hosts().is_empty());
    run(&contexts, |context| context.connect(&*store).unwrap());
    assert!(contexts.iter().all(|context| context.hosts() == [0, 0, 0]));
}

/// If rank 2 passes other groups and dims, all ranks that receive its messages fail at once.
#[test]
fn ranks_that_differ_are_named() {
    type Odd = fn(Shape<'static>) -> Shape<'static>;
    let odd: [(&str, Odd, &str); 4] = [
        ("torus_2d", |s| Shape { groups: &[0, 0, 1, 2], ..s }, "groups 0,0,1,2, dims none"),
        ("hierarchical", |s| Shape { groups: &[0, 1, 0, 1], ..s }, "groups 0,1,0,1, dims none"),
        ("torus_nd", |s| Shape { dims: &[2, 2], ..s }, "groups 0,0,1,1, dims 2x2"),
        ("mesh_2d", |s| Shape { dims: &[4, 1], ..s }, "groups 0,0,1,1, dims 4x1"),
    ];
    for (name, place, says) in odd {
        for checked in [false, true] {
            let mut contexts = group(4);
            for context in &mut contexts {
                context.hosts.set([0, 0, 1, 1].into()).unwrap();
                Arc::get_mut(context).unwrap().check_calls = checked;
            }
            let all_done = Barrier::new(4);
            let errors = std::sync::Mutex::new(Vec::new());
            run(&contexts, |context| {
                let result = allreduce(context, name, if context.rank() == 2 { place } else { |s| s });
                all_done.wait();
                if let Err(error) = result {
                    errors.lock().unwrap().push(error);
                }
                if checked {
                    assert_eq!(allreduce(context, name, |s| s).unwrap(), 6, "the context stays usable");
                }
            });
            let errors = errors.into_inner().unwrap();
            assert!(errors.iter().any(|error| error.kind() == ErrorKind::Mismatch), "{name}: {errors:?}");
            if checked {
                assert_eq!(errors.len(), 4);
                let usual = "ranks 0, 1, 3 call";
                for error in &errors {
                    let text = error.message();
                    assert!(text.contains("rank 2 calls") && text.contains(says) && text.contains(usual), "{text}");
                }
            }
        }
    }
}

#[test]
fn what_is_wrong_with_groups_and_dims() {
    let contexts = group(4);
    let refused = |name, place: fn(Shape<'static>) -> Shape<'static>| {
        let error = allreduce(&contexts[1], name, place).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        error.message().to_owned()
    };
    assert!(refused("torus_2d", |s| Shape { groups: &[0; 3], ..s }).contains("groups has 3 entries, but size is 4"));
    assert!(refused("torus_nd", |s| Shape { dims: &[3, 2], ..s }).contains("dims is 3 x 2, that is 6 ranks"));
    assert!(refused("torus_2d", |s| Shape { dims: &[2, 2, 1], ..s }).contains("it must have 2"));
    assert!(refused("mesh_2d", |s| Shape { dims: &[4], ..s }).contains("it must have 2"));
    assert!(contexts[1].broken().is_none(), "nothing was begun");
}

#[test]
fn the_caches_of_ranks_are_known_to_all_contexts_of_theirs() {
    const SOCKETS: [u32; 4] = [0, 0, 8, 8];
    let store = InProcessStore::new();
    let options = ContextOptions { timeout: Duration::from_secs(20), ..Default::default() };
    let contexts = |rank: usize| {
        PRETENDED.set(Some(Place { cache: Some(4 * rank as u32), socket: Some(SOCKETS[rank]) }));
        let device =
            DeviceOptions { hostname: Some("127.0.0.1".into()), shared_memory: Some(true), ..Default::default() };
        let device = Device::create(&device).unwrap();
        let context = Context::new(device.clone(), rank, 4, &options).unwrap();
        context.connect(&*store).unwrap();
        let other = Context::new(device, rank, 4, &options).unwrap();
        other.connect_from(&context, 1).unwrap();
        let part = context.split(Some(rank as u32 % 2), 0).unwrap().unwrap();
        let alike = context.split(Some(rank as u32 / 2), 0).unwrap().unwrap();
        assert_eq!(split::sum(&context, rank as u64, 0), 6);
        [context, other, part, alike].map(|context| context.topology().domains.clone())
    };
    std::thread::scope(|scope| {
        let ranks = [0, 1, 2, 3].map(|rank| scope.spawn(move || contexts(rank)));
        for all in ranks.map(|rank| rank.join().unwrap()) {
            let four = [0, 1, domain(1, 2), domain(1, 3)];
            assert_eq!(all, [&four[..], &four, &[0, domain(1, 1)], &[0, 1]]);
        }
    });
}
