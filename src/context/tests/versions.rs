//! Ranks that run different versions of the library. Rank 0 runs this one, and some other rank pretends.

use super::disagreement::make;
use super::*;
use crate::version::Version;

const OWN: Version = Version::OWN;
const PATCH: Version = Version { patch: OWN.patch + 1, ..OWN };

fn options(version: Version) -> ContextOptions {
    ContextOptions { timeout: Duration::from_secs(20), check_calls: Some(false), version, ..Default::default() }
}

/// Both versions, as errors name them.
fn both(odd: Rank, version: Version) -> String {
    format!("rank 0 runs gloo_rs {OWN}, rank {odd} runs {version}")
}

/// Contexts of ranks of this host of which the last runs `version`.
fn connected(size: usize, shared: bool, version: Version, own: &ContextOptions) -> Vec<Arc<Context>> {
    let device = || {
        let hostname = Some("127.0.0.1".into());
        Device::create(&DeviceOptions { hostname, shared_memory: Some(shared), ..Default::default() }).unwrap()
    };
    let with = |rank| ContextOptions { version: if rank == size - 1 { version } else { OWN }, ..own.clone() };
    let options: Vec<_> = (0..size).map(with).collect();
    agreement::connected_on(&device, &options).into_iter().map(Result::unwrap).collect()
}

#[test]
fn all_ranks_refuse_versions_that_do_not_work_together() {
    for version in [Version { minor: OWN.minor + 1, ..OWN }, Version { major: OWN.major + 1, ..OWN }] {
        let two = [options(OWN), options(version)];
        let over_store = agreement::connected_with(&two).into_iter().map(|result| result.map(drop));
        let by_allgather = oob::connect(&two, |_, _, _| Ok(())).into_iter().map(|ended| ended.1);
        let contexts: Vec<_> = (0..2).map(|rank| Context::new(device(), rank, 2, &two[rank]).unwrap()).collect();
        let pairs = [0, 1].map(|rank| contexts[rank].pair(1 - rank).unwrap());
        let addresses = [0, 1].map(|rank| pairs[1 - rank].address().unwrap());
        let by_pair = [0, 1].map(|rank| pairs[rank].connect(&addresses[rank]));
        for result in over_store.chain(by_allgather).chain(by_pair) {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert!(error.message().contains(&both(1, version)) && error.message().len() < 300, "{error}");
        }
    }
    // Whichever rank it is, that they all fail is for rank 0 to say.
    let error =
        agreement::connected_with(&[options(OWN), options(OWN), options(Version { minor: OWN.minor + 1, ..OWN })]);
    assert!(error.into_iter().all(|result| result.err().unwrap().details().rank == Some(2)));
}

/// Every error of a disagreement names the versions, on every link.
#[test]
fn calls_that_differ_between_versions_name_them() {
    for shared in [true, false] {
        let contexts = connected(2, shared, PATCH, &options(OWN));
        assert_eq!(contexts[0].shares_memory(1).unwrap(), shared);
        let failed = std::sync::Mutex::new(0);
        run(&contexts, |context| {
            let call = (Collective::Allreduce, 10 + context.rank(), 0);
            let Err(error) = make(context, call, Duration::from_secs(60)) else { return };
            *failed.lock().unwrap() += 1;
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert_eq!(error.message().matches(&both(1, PATCH)).count(), 1, "{error}");
            // The error of a later call says so, too, on a context that this one has broken.
            let later = make(context, call, Duration::from_secs(60)).unwrap_err();
            assert_eq!(later.message().matches("runs gloo_rs").count(), 1, "{later}");
        });
        assert!(*failed.lock().unwrap() > 0);

        let checked = ContextOptions { check_calls: Some(true), ..options(OWN) };
        let contexts = connected(3, shared, PATCH, &checked);
        run(&contexts, |context| {
            let odd = context.rank() == 2;
            let error = make(context, (Collective::Allreduce, 10 + usize::from(odd), 0), Duration::MAX).unwrap_err();
            let names = format!("rank {}", if context.rank() == 1 { 1 } else { 0 });
            assert!(error.message().contains(&both(2, PATCH).replace("rank 0", &names)), "{error}");
            make(context, (Collective::Allreduce, 10, 0), Duration::MAX).unwrap();
        });
    }
}

/// The contexts that come out of others know the versions, and so do pairs, and errors of buffers name them.
#[test]
fn messages_that_do_not_fit_name_the_versions() {
    let named = |contexts: &[Arc<Context>], zero: Rank, one: Rank| {
        let (sent, mut received) = ([0u8; 9], [0u8; 8]);
        // SAFETY: the arrays outlive the buffers.
        let send = unsafe { contexts[1].unbound_buffer(sent.as_ptr().cast_mut(), 9).unwrap() };
        // SAFETY: as above.
        let recv = unsafe { contexts[0].unbound_buffer(received.as_mut_ptr(), 8).unwrap() };
        recv.recv(&[one], 7, 0, 8).unwrap();
        send.send(zero, 7, 0, 9).unwrap();
        let error = recv.wait_recv(None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        error.message().to_owned()
    };
    let parents = connected(2, false, PATCH, &options(OWN));
    let results = std::sync::Mutex::new(vec![None, None]);
    run(&parents, |parent| {
        // In the new context they have each other's numbers.
        let part = parent.split(Some(0), -(parent.rank() as i32)).unwrap().unwrap();
        let copy = Context::new(parent.device().clone(), parent.rank(), 2, &parent.options).unwrap();
        copy.connect_from(parent, 9).unwrap();
        results.lock().unwrap()[parent.rank()] = Some((part, copy));
    });
    let (parts, copies): (Vec<_>, Vec<_>) = results.into_inner().unwrap().into_iter().flatten().unzip();
    let swapped = format!("rank 0 runs gloo_rs {PATCH}, rank 1 runs {OWN}");
    assert!(named(&parts, 1, 0).contains(&swapped), "{}", named(&parts, 1, 0));
    assert!(named(&copies, 0, 1).contains(&both(1, PATCH)));
    assert!(named(&parents, 0, 1).contains(&both(1, PATCH)));

    let by_pair: Vec<_> = [OWN, PATCH]
        .iter()
        .enumerate()
        .map(|(rank, own)| Context::new(device(), rank, 2, &options(*own)).unwrap())
        .collect();
    let addresses = [0, 1].map(|rank| by_pair[rank].pair(1 - rank).unwrap().address().unwrap());
    run(&by_pair, |context| {
        let peer = 1 - context.rank();
        context.pair(peer).unwrap().connect(&addresses[peer]).unwrap();
    });
    assert!(named(&by_pair, 0, 1).contains(&both(1, PATCH)));
}

#[test]
fn only_versions_of_ranks_that_disagree_are_named() {
    let contexts = connected(3, false, PATCH, &options(OWN));
    let about = |rank: Option<Rank>, kind| {
        let error = Error::new(kind, "why").about(crate::error::Details { rank, ..Default::default() });
        contexts[0].versions.added_to(error).message().to_owned()
    };
    let with = format!("why; {}", both(2, PATCH));
    // The ranks that it is about may be unknown; where a rank is named that is this one, it is another that says so.
    for (rank, kind, text) in [
        (Some(1), ErrorKind::Mismatch, "why"),
        (Some(2), ErrorKind::Timeout, "why"),
        (Some(2), ErrorKind::Mismatch, &with),
        (Some(0), ErrorKind::Mismatch, &with),
        (None, ErrorKind::Mismatch, &with),
    ] {
        assert_eq!(about(rank, kind), text, "{rank:?}, {kind:?}");
    }
}
