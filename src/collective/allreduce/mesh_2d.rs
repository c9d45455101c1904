//! A two-dimensional mesh without wrap-around links, as in parts of TPU pods, in which only neighbours communicate
//! (Ying, Kumar, Chen, Wang and Cheng, "Image classification at supercomputer scale", arXiv 1811.06992, 2018, for the
//! two halves). Best where links exist only between neighbours of a grid.
//!
//! Half of the buffer is reduced along rows and then along a column at the edge, the other half along columns and then
//! along a row. Each half consists of two quarters that move in opposite directions to opposite corners, so both
//! directions of all links are used at the same time. From the corners the result returns along the same links.
//!
//! The mesh is given by the caller's `dims` (length of a row, number of rows), else by the groups if they have the same
//! size, else it is as nearly square as possible.
//!
//! Six ranks in rows of `0 1 2` and `3 4 5`: the first quarter goes from 0 to 1 to 2 and from 3 to 4 to 5, and from 2
//! to 5; the second the opposite way, from 5 and 2 to 3 and 0, and from 3 to 0; the third from 3, 4, 5 to 0, 1, 2, and
//! along these to 2; the last from 0, 1, 2 to 3, 4, 5, and along these to 3.
//!
//! Steps: `2 (n + m - 2)`. A message has `S / 4` bytes; a link carries `S / 2` in each direction, at the edges `3 S /
//! 4`.

use super::super::grid::{Grid, SharedLink};
use super::super::{Algorithm, Case, Shape, Uses};
use super::branches::{self, Branch};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

const NAME: &str = "mesh_2d";

pub(super) const ALGORITHM: Algorithm = Algorithm { name: NAME, generate, cost, uses: Uses::Groups };

/// Column and row.
type Coordinates = (usize, usize);

/// The tree of a quarter: along one dimension in one direction, then along the other.
struct Comb {
    along_rows_first: bool,
    /// The corner that is the root.
    root: Coordinates,
}

impl Comb {
    fn parent(&self, position: Coordinates) -> Option<Coordinates> {
        let (x, y) = position;
        let towards = |from: usize, to: usize| if from < to { from + 1 } else { from - 1 };
        let in_row = (x != self.root.0).then(|| (towards(x, self.root.0), y));
        let in_column = (y != self.root.1).then(|| (x, towards(y, self.root.1)));
        if self.along_rows_first { in_row.or(in_column) } else { in_column.or(in_row) }
    }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let grid = Grid::rectangular(shape, NAME)?;
    let (y, x) = grid.find(shape.rank);
    let (right, bottom) = (grid.longest() - 1, grid.rows.len() - 1);
    let at = |(x, y): Coordinates| grid.rows[y][x];
    let beside = [(x.wrapping_sub(1), y), (x + 1, y)];
    let above = [(x, y.wrapping_sub(1)), (x, y + 1)];
    let roots = [(true, (right, bottom)), (true, (0, 0)), (false, (right, 0)), (false, (0, bottom))];
    let branch = |(quarter, (along_rows_first, root))| {
        let comb = Comb { along_rows_first, root };
        // Data along the first dimension is complete earlier.
        let neighbours = if along_rows_first { [beside, above] } else { [above, beside] };
        let inside = neighbours.into_iter().flatten().filter(|&(x, y)| x <= right && y <= bottom);
        Branch {
            range: shape.output(0).part(roots.len(), quarter),
            parent: comb.parent((x, y)).map(at),
            children: inside.filter(|&other| comb.parent(other) == Some((x, y))).map(at).collect(),
        }
    };
    Ok(branches::allreduce(shape, &roots.into_iter().enumerate().map(branch).collect::<Vec<_>>()))
}

/// `2(n+m-2)(α + S/(4B)) + (n+m-1)γS/4`, in one dimension `S/(2B)` more, where each pair of neighbours has its own
/// link: at some ranks quarters arrive from two sides and are reduced one after the other. Where a rank sends to all
/// neighbours over one network card its messages delay each other, but only a little, since most are at different
/// stages. With segments it is an upper estimate: the load of a card or of a link at the edge.
fn cost(case: &Case<'_>) -> Cost {
    let Ok(grid) = Grid::rectangular(case.shape, NAME) else { return Case::unpriced(case) };
    let (ranks, bytes, gamma) = (case.ranks(), case.bytes(), case.network.gamma);
    let (n, m) = (grid.longest(), grid.rows.len());
    let links = [(grid.row_link(case), n), (grid.column_link(case, 1, m), m)];
    let quarter = bytes / 4.0;
    let segment = quarter.min(case.segment_bytes as f64);
    let one_card = case.network.per_host < case.shape.size;
    let message = if one_card { case.network.far().busy.max(case.network.gap) } else { 0.0 };
    let reduced = (ranks - 1.0) * bytes;
    let total =
        |path| Cost { path, messages: 8.0 * (ranks - 1.0) * case.pieces(quarter), sent: 2.0 * reduced, reduced };
    if case.is_empty() {
        return total(0.0);
    }
    // All messages decide which columns of a host share its network card at the same time; only the simulator can tell.
    if (2..case.shape.size).contains(&case.network.per_host) {
        return total(f64::INFINITY);
    }
    let (local, remote) = (case.network.near(), case.network.far());
    let (reduce, hops) = (gamma * segment, (n + m - 2) as f64);
    let mut path = match one_card {
        true => (hops.clamp(2.0, 4.0) * segment / remote.bandwidth - remote.latency).max(segment / remote.bandwidth),
        false => reduce + (reduce - segment / local.bandwidth).max(0.0) * case.constants.mesh_meeting,
    };
    for (SharedLink { link, sharing }, extent) in links.into_iter().filter(|(_, extent)| *extent > 1) {
        let up_and_down = 2.0 * segment / link.bandwidth;
        path += (extent as f64 - 1.0) * (2.0 * link.latency + up_and_down + gamma * segment);
        // All columns of a host start at the same time; later they are spread out.
        path += (sharing - 1.0) * up_and_down;
    }
    let line = n == 1 || m == 1;
    if segment < quarter {
        // At the edge a link carries three quarters in each direction, in a one-dimensional mesh all four. A network
        // card carries all four quarters up, and each down to up to five children.
        let load = if one_card {
            9.0
        } else if line {
            4.0
        } else {
            3.0
        } * quarter;
        let slowest = links.iter().map(|(shared, _)| shared.sharing / shared.link.bandwidth).fold(0.0, f64::max);
        let busy = 6.0 * quarter * gamma + load / quarter * case.later(quarter) * message;
        path += (load * slowest).max(busy);
    } else if line && !one_card {
        // In a one-dimensional mesh two quarters follow each other on each link, up and down. Between two ranks, a sum
        // is ready to be sent before the second quarter is sent.
        path += 2.0 * quarter / local.bandwidth;
        if ranks == 2.0 {
            path -= (local.latency + reduce).min(quarter / local.bandwidth);
        }
    }
    total(path)
}
