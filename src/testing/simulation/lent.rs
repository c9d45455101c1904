//! Threads that are lent to a context.

use std::time::Duration;

use super::idle;
use super::job::{play_over, reliable};
use super::sums::{LONG, LongPublications, PLACES, SHORT, Sum};
use crate::error::ErrorKind;
use crate::testing::loopback::Network;

/// Rank 0 only lends its thread, which calls the functions of its requests; without that these would not end.
#[test]
fn a_lent_thread_does_what_a_wait_would() {
    for place in PLACES {
        for (algorithm, lends) in place.algorithms().iter().flat_map(|one| [(*one, true), (*one, false)]) {
            let _long = LongPublications::begin();
            let network = Network::new(1, reliable());
            let all = place.contexts(&network, 3, 1);
            let ended = play_over(&network, &all[0], |network, context| {
                let mut data = [vec![1; 1000], vec![2; 700]];
                let (mut rest, mut requests) = (&mut data[..], Vec::new());
                for tag in 0..2 {
                    let (first, others) = std::mem::take(&mut rest).split_first_mut().unwrap();
                    rest = others;
                    requests.push(Sum { algorithm, by_function: true, tag, in_order: false }.request(context, first));
                }
                requests.iter().for_each(|request| request.start().unwrap());
                if context.rank() > 0 {
                    let in_time = requests.iter().all(|request| request.wait_for(2 * LONG).unwrap());
                    if !in_time {
                        requests
                            .iter()
                            .filter(|request| request.is_active())
                            .for_each(|request| request.wait().unwrap());
                    }
                    return (in_time, data);
                }
                let began = network.now();
                if lends {
                    context.progress_for(Some(LONG)).unwrap();
                } else {
                    idle(network, LONG);
                }
                assert_eq!(network.now() - began, LONG, "{place:?}, {algorithm}");
                let have_ended = requests.iter().all(|request| request.progressed().has_ended);
                idle(network, 2 * LONG);
                requests.iter().for_each(|request| request.wait().unwrap());
                drop(requests);
                (have_ended, data)
            });
            let ended: Vec<_> = ended.into_iter().map(Option::unwrap).collect();
            assert_eq!(ended[0].0, lends, "{place:?}, {algorithm}");
            assert!(ended.iter().all(|(_, data)| data[0] == [3; 1000] && data[1] == [6; 700]));
        }
    }
}

#[test]
fn a_thread_that_is_lent_in_vain_comes_back_in_time() {
    for place in PLACES {
        let network = Network::new(1, reliable());
        let all = place.contexts(&network, 2, 1);
        let ended = play_over(&network, &all[0], |network, context| {
            for time in [Duration::ZERO, SHORT, LONG] {
                let began = network.now();
                context.progress_for(Some(time)).unwrap();
                assert_eq!(network.now() - began, time, "{place:?}");
            }
        });
        assert!(ended.iter().all(Option::is_some));
    }
}

#[test]
fn the_end_of_a_context_ends_a_loan() {
    for place in PLACES {
        let network = Network::new(1, reliable());
        let all = place.contexts(&network, 2, 1);
        let ended = play_over(&network, &all[0], |network, context| {
            let mut data = [1];
            let sum = Sum { algorithm: place.algorithms()[0], by_function: false, tag: 0, in_order: false };
            // Connects the ranks.
            let request = sum.request(context, &mut data);
            request.start().unwrap();
            if context.rank() == 1 {
                idle(network, LONG);
                return context.abort("for the test").unwrap();
            }
            let began = network.now();
            let error = context.progress_for(None).unwrap_err();
            assert_eq!((error.kind(), error.details().rank), (ErrorKind::Aborted, Some(1)), "{error}");
            assert!(network.now() - began < 2 * LONG && error.message().contains("for the test"), "{error}");
            assert_eq!(context.progress_for(Some(LONG)).unwrap_err().kind(), ErrorKind::Aborted);
            let _ = request.wait();
        });
        assert!(ended.iter().all(Option::is_some), "{place:?}");
    }
}
