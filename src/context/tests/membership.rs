//! Members of one membership after another, over TCP and in shared memory.

use std::sync::{Barrier, Mutex};

use super::*;
use crate::rendezvous::{InProcessStore, PrefixStore};
use crate::tuner::file::Tuning;

#[test]
fn the_next_membership_keeps_what_was_measured() {
    let (store, all) = (InProcessStore::new(), Barrier::new(3));
    let (handles, tunings) = (Mutex::new(vec![String::new(); 3]), Mutex::new(Vec::<Tuning>::new()));
    let options = ContextOptions {
        timeout: Duration::from_secs(20),
        tuning: Some("measure".to_owned()),
        ..ContextOptions::default()
    };
    let process = |number: usize| {
        let keep = |member: &Member| {
            let tuning = member.context().unwrap().tuners.current().tuning().clone();
            tunings.lock().unwrap().push(tuning);
        };
        let member = if number < 2 {
            let context = Context::new(device(), number, 2, &options).unwrap();
            context.connect(&PrefixStore::new("first", store.clone())).unwrap();
            Member::from(context)
        } else {
            Member::without_context(device(), &options).unwrap()
        };
        if number < 2 {
            keep(&member);
        }
        // The first change keeps the members, the second adds one, and the third leaves one out.
        for (id, members) in [(1, vec![0, 1]), (2, vec![1, 0, 2]), (3, vec![2, 1])] {
            handles.lock().unwrap()[number] = member.handle().unwrap();
            all.wait();
            let texts: Vec<String> = members.iter().map(|of: &usize| handles.lock().unwrap()[*of].clone()).collect();
            all.wait();
            if !members.contains(&number) {
                continue;
            }
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let part = PrefixStore::new(id.to_string(), store.clone());
            // SAFETY: this thread is the only one that uses the member, and takes its context again afterwards.
            unsafe { member.reconfigure(&part, id, &texts, true, None, &|| 0) }.unwrap();
            keep(&member);
        }
    };
    std::thread::scope(|scope| {
        let process = &process;
        (0..3).for_each(|number| drop(scope.spawn(move || process(number))));
    });
    let tunings = tunings.into_inner().unwrap();
    assert!(tunings.len() == 9 && tunings[0].local.is_some(), "{tunings:?}");
    assert!(tunings.iter().all(|tuning| *tuning == tunings[0]), "{tunings:?}");
}
