//! Who should hold what: a fair share, the same in the eyes of all who see the same members.

/// What an instance changes in its next round.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LeasePlan {
    pub take: Vec<usize>,
    pub retire: Vec<usize>,
}

/// The shares of all members differ by one at most, and add up to all names. `short`: one of them
/// holds less than all may have. Unless one is, nobody gives up the one that it has more than others:
/// whoever comes and goes does not make what is under way begin anew.
pub(super) fn plan(
    instance: u64,
    members: &[u64],
    names: usize,
    held: &[usize],
    free: &[usize],
    short: bool,
) -> LeasePlan {
    let mut sorted = members.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let Some(rank) = sorted.iter().position(|member| *member == instance) else {
        // Not registered, by the table: what is held is renewed, nothing is taken.
        return LeasePlan { take: Vec::new(), retire: Vec::new() };
    };
    let count = sorted.len();
    let quota = names / count + usize::from(rank < names % count);
    let keeps = if short { quota } else { names.div_ceil(count) };
    let retire = held.iter().rev().take(held.len().saturating_sub(keeps)).copied().collect();
    // Each begins elsewhere, so that few want the same.
    let begin = free.partition_point(|index| *index < rank * names / count);
    let rotated = free[begin..].iter().chain(&free[..begin]);
    let take = rotated.take(quota.saturating_sub(held.len())).copied().collect();
    LeasePlan { take, retire }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_fair_and_add_up() {
        for names in [1, 2, 16, 64] {
            for count in 1..10_usize {
                let members: Vec<u64> = (0..count as u64).map(|member| member * 7 + 3).collect();
                let free: Vec<usize> = (0..names).collect();
                let mut shares = Vec::new();
                for member in &members {
                    let LeasePlan { take, retire } =
                        plan(*member, &members, names, &[], &free, true);
                    assert!(retire.is_empty());
                    shares.push(take.len());
                }
                assert_eq!(shares.iter().sum::<usize>(), names);
                let (least, most) = (shares.iter().min(), shares.iter().max());
                assert!(most.unwrap() - least.unwrap() <= 1, "{names} {count} {shares:?}");
            }
        }
    }

    #[test]
    fn too_much_is_given_up_and_an_unregistered_instance_keeps_still() {
        let held: Vec<usize> = (0..10).collect();
        let LeasePlan { take, retire } = plan(1, &[1, 2], 10, &held, &[], true);
        assert_eq!((take.len(), retire.len()), (0, 5));
        let nothing = LeasePlan { take: vec![], retire: vec![] };
        assert_eq!(plan(9, &[1, 2], 10, &held, &[3], true), nothing);
        assert_eq!(plan(2, &[1, 2], 2, &[], &[], true), nothing);
    }

    #[test]
    fn who_comes_takes_nothing_that_is_fairly_held() {
        let nothing = LeasePlan { take: vec![], retire: vec![] };
        assert_eq!(plan(2, &[1, 2], 1, &[0], &[], false), nothing, "the only one stays");
        assert_eq!(plan(1, &[1, 2], 1, &[], &[], false), nothing);
        assert_eq!(plan(1, &[1], 1, &[], &[0], false).take, [0], "until its holder goes");
        // Six, six and four of sixteen: the last is short, so one of the first gives one up.
        let six: Vec<usize> = (0..6).collect();
        let retires = |member, short| plan(member, &[1, 2, 3], 16, &six, &[], short).retire.len();
        assert_eq!((retires(1, true), retires(2, true)), (0, 1));
        assert_eq!((retires(1, false), retires(2, false)), (0, 0));
    }
}
