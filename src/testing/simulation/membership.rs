//! What programs see of a change of their membership: which calls are refused, and what ends.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use super::job::TIMEOUT;
use super::reconfigure::{ID, change, members, options};
use super::split::{gather, link_model, never_poll};
use super::store::{Table, VirtualStore};
use super::{Body, idle, run, sleep};
use crate::context::{Context, Member, RemoteKey};
use crate::engine::Spin;
use crate::error::ErrorKind;
use crate::testing::loopback::{Network, Node};

/// Runs `program` for each of `processes`, of which those below `old` have a common context.
fn each<T>(old: usize, processes: usize, program: impl Fn(&Network, &Table, usize, &[Member]) -> T) -> Vec<T> {
    let network = Network::new(5, link_model());
    let members = members(&network, old, processes, false);
    each_of(&network, &members, |network, table, process, members| {
        if process < old {
            never_poll(members[process].context().unwrap());
        }
        program(network, table, process, members)
    })
}

/// Runs `program` for each of these processes.
fn each_of<T>(
    network: &Network,
    members: &[Member],
    program: impl Fn(&Network, &Table, usize, &[Member]) -> T,
) -> Vec<T> {
    let table = Table::default();
    let ended: Vec<RefCell<Option<T>>> = members.iter().map(|_| RefCell::default()).collect();
    let bodies = ended.iter().enumerate().map(|(process, ended)| -> Body<'_> {
        let (table, program) = (&table, &program);
        Box::new(move || {
            let own = program(network, table, process, members);
            *ended.borrow_mut() = Some(own);
        })
    });
    run(network, bodies.collect(), |process| members[process].close());
    ended.into_iter().map(|ended| ended.into_inner().expect("the process has ended")).collect()
}

fn handles(members: &[Member]) -> Vec<String> {
    members.iter().map(|member| member.handle().unwrap()).collect()
}

#[test]
fn an_id_is_used_once() {
    each(2, 2, |network, table, process, members| {
        let (member, store) = (&members[process], VirtualStore::new(table, network, process, None));
        let first = handles(members);
        let first: Vec<&str> = first.iter().map(String::as_str).collect();
        idle(network, Duration::from_millis(1));
        let change = |handles: &[&str], id| change(member, &store, id, handles, true);
        change(&first, 1).unwrap();
        idle(network, TIMEOUT);
        // The handles of the first membership name nobody any more.
        let error = change(&first, 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let second = handles(members);
        let second: Vec<&str> = second.iter().map(String::as_str).collect();
        idle(network, Duration::from_millis(1));
        let error = change(&second, 1).unwrap_err();
        let text = if process == 0 { "the id 1 was used before" } else { "the id 1 is that of another change" };
        assert!(error.kind() == ErrorKind::Mismatch && error.message().contains(text), "{error}");
        change(&second, 2).unwrap();
        never_poll(member.context().unwrap());
        assert_eq!(gather(member.context().unwrap(), process as u64).unwrap(), [0, 1]);
    });
}

#[test]
fn members_with_different_lists_do_not_meet() {
    each(3, 3, |network, table, process, members| {
        let (member, store) = (&members[process], VirtualStore::new(table, network, process, None));
        let all = handles(members);
        let mut list: Vec<&str> = all.iter().map(String::as_str).collect();
        if process == 2 {
            list.swap(1, 2);
        }
        idle(network, Duration::from_millis(1));
        let error = change(member, &store, ID, &list, true).unwrap_err();
        let kind = if process == 2 { ErrorKind::Mismatch } else { ErrorKind::Timeout };
        assert_eq!(error.kind(), kind, "{process}: {error}");
        idle(network, 2 * TIMEOUT);
        assert_eq!(gather(member.context().unwrap(), process as u64).unwrap(), [0, 1, 2]);
    });
}

#[test]
fn an_abort_ends_a_change_on_all_its_ranks() {
    for (old, processes) in [(2, 3), (0, 3)] {
        each(old, processes, |network, table, process, members| {
            let (member, store) = (&members[process], VirtualStore::new(table, network, process, None));
            let all = handles(members);
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            idle(network, Duration::from_millis(1));
            let began = network.now();
            if process == 2 {
                // In place of a third one that does not come, what another thread of the first does.
                idle(network, Duration::from_secs(2));
                return members[0].abort("the third will not come").unwrap();
            }
            let error = change(member, &store, ID, &all, true).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Aborted, "{process}: {error}");
            assert!(network.now() - began < Duration::from_secs(4), "{process}: {error}");
        });
    }
}

#[test]
fn what_runs_ends_first_and_what_is_old_is_refused() {
    each(2, 2, |network, table, process, members| {
        let (member, store) = (&members[process], VirtualStore::new(table, network, process, None));
        let all = handles(members);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        idle(network, Duration::from_millis(1));
        let context = member.shared().unwrap();
        let (mut sent, mut received) = ([1u8; 4], [0u8; 4]);
        // SAFETY: the arrays outlive the buffers.
        let buffers = unsafe {
            [&mut sent, &mut received].map(|array| context.unbound_buffer(array.as_mut_ptr(), array.len()).unwrap())
        };
        // Nobody sends this.
        buffers[1].recv(&[1 - process], 9, 0, 4).unwrap();
        let pair = context.pair(1 - process).unwrap();
        change(member, &store, ID, &all, true).unwrap();
        let error = buffers[1].wait_recv(None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
        let refused = [
            gather(&context, 1).map(drop),
            buffers[0].send(1 - process, 9, 0, 4).and_then(|()| buffers[0].wait_send(None).map(drop)),
            buffers[1].recv(&[1 - process], 9, 0, 4).and_then(|()| buffers[1].wait_recv(None).map(drop)),
            pair.connect(&[]),
            context.split(Some(0), 0).map(drop),
        ];
        for (at, refused) in refused.into_iter().enumerate() {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOperation, "{at}: {error}");
        }
        never_poll(member.context().unwrap());
        assert_eq!(gather(member.context().unwrap(), 3).unwrap(), [3, 3]);
    });
}

#[test]
fn keys_of_the_old_membership_are_refused() {
    let keys: [RefCell<Option<RemoteKey>>; 2] = Default::default();
    each(2, 2, |network, table, process, members| {
        let (member, store) = (&members[process], VirtualStore::new(table, network, process, None));
        let all = handles(members);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let mut memory = [[0u8; 4]; 2];
        let [old, new] = memory.each_mut().map(|memory| memory.as_mut_ptr());
        // SAFETY: the memory outlives the buffer.
        let buffer_at = |memory| unsafe { member.shared().unwrap().unbound_buffer(memory, 4).unwrap() };
        let buffer = buffer_at(old);
        *keys[process].borrow_mut() = Some(buffer.remote_key().unwrap());
        idle(network, Duration::from_millis(1));
        let olds = [0, 1].map(|rank| keys[rank].borrow().unwrap());
        change(member, &store, ID, &all, true).unwrap();
        never_poll(member.context().unwrap());
        // It has the number that the old one had.
        let buffer = buffer_at(new);
        let key = buffer.remote_key().unwrap();
        assert_eq!((key.id, key.rank), (olds[process].id, process));
        for old in olds {
            for refused in [buffer.put(&old, 0, 0, 0, 4), buffer.get(&old, 0, 0, 0, 4)] {
                let error = refused.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidOperation, "{old}: {error}");
            }
        }
        *keys[process].borrow_mut() = Some(key);
        assert_eq!(gather(member.context().unwrap(), 3).unwrap(), [3, 3]);
        buffer.put(&keys[1 - process].borrow().unwrap(), 0, 0, 0, 4).unwrap();
        assert_eq!(buffer.wait_send(None).unwrap(), Some(1 - process));
        assert_eq!(gather(member.context().unwrap(), 3).unwrap(), [3, 3]);
    });
}

/// The others know it.
#[test]
fn a_member_that_has_not_connected_learns_who_the_others_are() {
    for stranger in 0..3 {
        let network = Network::new(5, link_model());
        let devices = [(); 3].map(|()| Node::new(&network, sleep));
        let context = |rank: usize| {
            let context = Context::new(devices[rank].clone(), rank, 3, &options()).unwrap();
            context.lock().unwrap().waiters.set_spin(Spin::of(Duration::ZERO));
            context
        };
        let contexts: Vec<Arc<Context>> = (0..3).map(context).collect();
        let addresses: Vec<_> = contexts.iter().map(|context| context.lock().unwrap().messenger.address()).collect();
        for context in contexts.iter().filter(|context| context.rank() != stranger) {
            for (rank, address) in addresses.iter().enumerate() {
                context.lock().unwrap().messenger.set_peer(rank, address).unwrap();
            }
            never_poll(context);
        }
        let members: Vec<Member> = contexts.into_iter().map(Member::from).collect();
        each_of(&network, &members, |network, table, process, members| {
            let (member, store) = (&members[process], VirtualStore::new(table, network, process, None));
            let all = handles(members);
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            idle(network, Duration::from_millis(1));
            change(member, &store, ID, &all, true).unwrap();
            never_poll(member.context().unwrap());
            assert_eq!(gather(member.context().unwrap(), process as u64).unwrap(), [0, 1, 2]);
        });
    }
}
