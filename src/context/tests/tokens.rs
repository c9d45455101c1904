//! Job tokens: a rank with another token is refused, and gets an error that says so.

use super::*;
use crate::context::Connect;
use crate::rendezvous::InProcessStore;

/// Connects one context for each token, each with its own device, over one store; returns contexts and results.
fn connect_with(tokens: [Option<&str>; 2], connect: Connect) -> Vec<(Arc<Context>, Result<()>)> {
    let store = InProcessStore::new();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = tokens
            .into_iter()
            .enumerate()
            .map(|(rank, token)| {
                let store = store.clone();
                scope.spawn(move || {
                    let token = token.map(JobToken::new);
                    let options =
                        ContextOptions { timeout: Duration::from_secs(20), connect, token, ..Default::default() };
                    let context = Context::new(device(), rank, 2, &options).unwrap();
                    let result = context.connect(&*store);
                    (context, result)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn one_token_connects() {
    for token in [Some("the same"), Some(""), None] {
        for (_, result) in connect_with([token; 2], Connect::Full) {
            result.unwrap();
        }
    }
}

#[test]
fn both_ranks_fail_at_once_if_their_tokens_differ() {
    for (tokens, parts) in [
        ([Some("swordfish"), Some("herring")], [["job token (GLOO_RS_TOKEN) another one"; 2]; 2]),
        (
            [Some("swordfish"), Some("")],
            [
                ["it has no job token and this process has one", "GLOO_RS_TOKEN"],
                ["it has a job token", "GLOO_RS_TOKEN"],
            ],
        ),
    ] {
        let started = std::time::Instant::now();
        for (rank, (_, result)) in connect_with(tokens, Connect::Full).into_iter().enumerate() {
            let error = result.unwrap_err();
            let text = error.message();
            let peer = format!("cannot connect to rank {} at 127.0.0.1:", 1 - rank);
            for part in parts[rank].into_iter().chain([&peer[..]]) {
                assert!(text.contains(part), "{part:?} is not in {text}");
            }
            assert!(!text.contains("swordfish") && !text.contains("herring"), "{text}");
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{text}");
        }
        // The timeout is 20 s.
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    }
}
