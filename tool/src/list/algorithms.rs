//! What each algorithm is, in a few words: its source file, which has its name, says more.

/// An algorithm, in all collectives that have it. P is the number of ranks, S the size of the buffer in bytes.
pub struct Explained {
    pub name: &'static str,
    /// What the ranks do.
    pub does: &'static str,
    /// The calls for which the algorithm is meant.
    pub best: &'static str,
    /// Steps one after the other, and bytes.
    pub costs: &'static str,
}

const fn of(name: &'static str, does: &'static str, best: &'static str, costs: &'static str) -> Explained {
    Explained { name, does, best, costs }
}

/// In alphabetical order.
pub const ALGORITHMS: &[Explained] = &[
    of(
        "all_to_all",
        "every rank sends a token to every other rank, and waits for theirs",
        "few ranks",
        "1 step; every rank sends P-1 tokens",
    ),
    of(
        "all_to_one",
        "every rank sends a token to the root, which then sends one to every rank",
        "ranks that share cores: it has the fewest messages",
        "2 steps; the root sends and receives P-1 tokens",
    ),
    of(
        "bcube",
        "groups of --base ranks exchange parts of the buffer, then groups of such groups, and all of it backwards",
        "medium and large buffers, if P is a power of the base",
        "2 log P steps, to that base; every rank sends 2S(P-1)/P bytes",
    ),
    of(
        "binomial",
        "data moves along the edges of a binomial tree with the root at its top",
        "small buffers or blocks on many ranks",
        "lg P steps; the root sends or receives lg P messages",
    ),
    of(
        "bruck",
        "in steps of distance 1, 2, 4, ... ranks pass on all blocks that must go that way, many in one message",
        "small blocks, for any number of ranks",
        "lg P steps; in an alltoall a block is sent up to lg P times",
    ),
    of(
        "direct",
        "every block is sent from the rank that has it to the rank that needs it",
        "large blocks, few ranks, and links of their own between all pairs, as on one host",
        "1 step; up to P-1 messages of a rank, each byte once",
    ),
    of(
        "dissemination",
        "in step i every rank sends a token to the rank 2^i after it",
        "many ranks",
        "lg P steps; every rank sends one token in each",
    ),
    of(
        "double_binary_tree",
        "two binary trees at the same time, each for one half of the buffer, in segments",
        "large buffers on many ranks: nearly the latency of a tree, and the bandwidth of a ring",
        "2 lg P steps and two for each segment, twice that for an allreduce; a rank sends at most S bytes each way",
    ),
    of(
        "flat",
        "every rank sends its buffer to the root, which reduces them in the order of ranks",
        "the smallest buffers on few ranks",
        "1 step; the root receives S(P-1) bytes, and has scratch memory for them",
    ),
    of(
        "halving_doubling",
        "ranks exchange halves of what they have with partners at distance 1, 2, 4, ..., then, if all need all, backwards",
        "medium buffers, above all if P is a power of two",
        "lg P steps for a reduce-scatter, 2 lg P for an allreduce; a rank sends (P-1)S/P bytes in each half",
    ),
    of(
        "hierarchical",
        "the ranks of each host reduce to a leader, the leaders do a ring allreduce, and pass the result on",
        "a few hosts with many ranks each on a slow network, and medium buffers",
        "2(m-1) + 2 steps for m hosts; only leaders use the network, with 2S(m-1)/m bytes each",
    ),
    of(
        "hierarchical_direct",
        "the ranks of each host reduce to a leader, every leader sends the sum to all others, and passes the result on",
        "a few hosts, and buffers for which the latency between them counts more than the bytes",
        "3 steps, of which one is between the m hosts; a leader sends S(m-1) bytes there",
    ),
    of(
        "local",
        "the buffers of a single process are reduced, and the result is copied to all of them",
        "one rank with several buffers; it has no other use",
        "nothing is sent",
    ),
    of(
        "mesh_2d",
        "each quarter of the buffer is reduced along rows and columns of a grid to a corner of its own, and returns",
        "networks with links between neighbours of a grid only",
        "2(n+m-2) steps for m rows of n ranks; a link carries S/2 bytes in each direction, at the edges 3S/4",
    ),
    of(
        "one_to_all",
        "the root sends its buffer to every other rank",
        "the smallest buffers on few ranks",
        "1 step; the root sends S(P-1) bytes",
    ),
    of(
        "pairwise",
        "in step i every rank sends to the rank i after it, and receives from the rank i before it",
        "all but small blocks",
        "P-1 messages of a rank, which do not wait for each other; each block is sent once",
    ),
    of(
        "pairwise_exchange",
        "every rank exchanges block i with the rank whose number differs in bit i",
        "tests of bandwidth",
        "1 step; every rank sends lg P blocks",
    ),
    of(
        "pipelined_chain",
        "each rank forwards what it receives to the next one, in segments",
        "large buffers on few ranks",
        "P-2 steps and one for each segment; every rank but the last sends S bytes",
    ),
    of(
        "recursive_doubling",
        "ranks exchange all that they have with partners at distance 1, 2, 4, ...",
        "small buffers: it has the fewest steps",
        "lg P steps, two more if an allreduce's P is no power of two; an allreduce sends S lg P bytes of a rank",
    ),
    of(
        "reduce_broadcast",
        "every rank sends its buffer to rank 0, which reduces them and sends the result to every rank",
        "the smallest buffers, few ranks, and high latency",
        "2 steps; rank 0 sends and receives S(P-1) bytes, and has scratch memory for them",
    ),
    of(
        "ring",
        "ranks receive from one neighbour, add their own data if there is a reduction, and send to the other",
        "large blocks, as each is sent over each link once; in an allreduce, which sends whole buffers, small ones",
        "P-1 steps, one more for a reduce; a rank sends S(P-1)/P bytes, in an allreduce S(P-1)",
    ),
    of(
        "ring_chunked",
        "as ring_segmented, with two chunks of each rank; a chunk is received in scratch memory while another is reduced",
        "large buffers on links that cannot reduce while they receive",
        "2(P-1) steps; every rank sends 2S(P-1)/P bytes",
    ),
    of(
        "ring_segmented",
        "a chunk for each rank moves around a ring and is reduced on the way, then moves around once more, in segments",
        "large buffers: no algorithm sends fewer bytes",
        "2(P-1) steps; every rank sends 2S(P-1)/P bytes",
    ),
    of(
        "scatter_allgather",
        "the root scatters blocks down a binomial tree, then all ranks gather them in a ring",
        "large buffers on a moderate number of ranks",
        "lg P + P-1 steps; a rank sends about S(P-1)/P bytes, the root twice as many",
    ),
    of(
        "shared_flat",
        "every rank publishes its data in shared memory, and reads what it needs of the others",
        "ranks of one host; of reductions, small buffers",
        "1 step, P-1 where ranks reduce, without messages; a rank that reduces whole buffers reads S(P-1) bytes",
    ),
    of(
        "shared_hierarchical",
        "as shared_flat, first within each last-level cache, then within each socket, then between the sockets",
        "a host whose ranks do not all share a cache",
        "a step for each level, without messages; other caches are read once by each cache, not by each rank",
    ),
    of(
        "shared_hierarchical_flat",
        "ranks reduce the buffers of their cache in shared memory, then the results of caches, then those of sockets",
        "small buffers on a host whose ranks do not all share a cache",
        "n+m-2 steps for m caches of n ranks, without messages; a rank reads S(n-1) bytes in its cache, S(m-1) of others",
    ),
    of(
        "shared_hierarchical_slices",
        "as shared_slices, first within each last-level cache, then within each socket, then between the sockets",
        "large buffers on a host whose ranks do not all share a cache",
        "2(n+m-2) steps for m caches of n ranks; a rank reads 2S(n-1)/n bytes in its cache, 2S(m-1)/(nm) of others",
    ),
    of(
        "shared_slices",
        "every rank reduces one slice of the buffers of all ranks in shared memory, then the slices are collected",
        "large buffers on one host: each element is reduced once",
        "P steps, without messages; in an allreduce a rank reads 2S(P-1)/P bytes",
    ),
    of(
        "spanning_trees",
        "trees over the measured links each carry a share of the buffer, as large as the links allow",
        "links that differ in bandwidth: trees avoid the slow ones. Measure them with `gloo-rs tune --topology`",
        "twice the height of the trees; each edge is used once in each direction",
    ),
    of(
        "torus_2d",
        "a reduce-scatter within each row of a grid, an allreduce in each column, an allgather in each row, all in rings",
        "large buffers on hosts with several ranks, which are the rows",
        "2(n-1) + 2(m-1) steps for m rows of n ranks; over the network a rank sends 2S(m-1)/(nm) bytes",
    ),
    of(
        "torus_nd",
        "a ring reduce-scatter in each dimension of a torus, of what the one before left, then allgathers backwards",
        "many ranks: few steps, and no more bytes than a ring",
        "2(p1-1 + p2-1 + ...) steps; every rank sends 2S(P-1)/P bytes",
    ),
    of(
        "tree",
        "a reduction up a binomial tree to rank 0, then a broadcast down the same tree",
        "small buffers where ranks share cores or a network that carries one message at a time",
        "2 lg P steps; all ranks together send 2(P-1) messages of S bytes",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use gloo_rs::collective::Collective;
    use std::collections::BTreeSet;

    #[test]
    fn every_algorithm_is_explained_once() {
        let named: Vec<_> = ALGORITHMS.iter().map(|algorithm| algorithm.name).collect();
        let there: BTreeSet<_> = Collective::ALL.iter().flat_map(|c| c.algorithms()).map(|a| a.name).collect();
        assert_eq!(named, there.into_iter().collect::<Vec<_>>());
        let lines = ALGORITHMS.iter().flat_map(|a| [a.does, a.best, a.costs]);
        lines.for_each(|line| assert!((8..=125).contains(&line.len()), "{line}"));
    }
}
