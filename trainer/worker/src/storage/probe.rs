//! Whether all workers see the same storage: one leaves a token, and each says whether it finds it.

use lockstep_elastic::Assignment;
use tracing::{info, warn};

use crate::{failure::Failure, membership::session::Member, step::rank::Rank, storage::Storage};

/// Refuses storage that not every member sees: a checkpoint there would be of no use after a restart on other nodes. Where some have
/// trained with it, those that came later go, and the others go on.
pub(crate) fn check(
    member: &Member<'_>,
    storage: &Storage,
    rank: &mut Rank<'_>,
    group: &Assignment,
) -> Result<(), Failure> {
    let mut unchecked = vec![0.0; group.world as usize];
    unchecked[group.rank as usize] = f32::from(u8::from(!rank.trainee.storage_is_checked));
    rank.sum(&mut unchecked)?;
    if unchecked.iter().all(|unchecked| *unchecked == 0.0) {
        return Ok(());
    }
    let standing = unchecked.iter().position(|unchecked| *unchecked == 0.0);
    let writes = group.rank as usize == standing.unwrap_or_default();
    let token = format!("{}-{}", member.launch.job.uid, group.generation);
    let left = if writes { storage.leave_token(&token) } else { Ok(()) };
    let blind = blind_ranks(storage, rank, group, &token, left);
    if writes {
        storage.clear_token(&token);
    }
    let Some(blind) = blind? else {
        info!("whether all workers see the same storage is asked in the next group");
        return Ok(());
    };
    let blind: Vec<usize> = (0..blind.len()).filter(|rank| blind[*rank] > 0.0).collect();
    if !blind.is_empty() {
        let pods: Vec<String> = blind.iter().map(|rank| group.pods[*rank].clone()).collect();
        let problem = storage.not_shared(&pods);
        let are_new = standing.is_some() && blind.iter().all(|rank| unchecked[*rank] > 0.0);
        return Err(match are_new {
            false => Failure::fatal(problem),
            true if blind.contains(&(group.rank as usize)) => Failure::Unfit(problem),
            true => Failure::broken(problem),
        });
    }
    rank.trainee.storage_is_checked = true;
    Ok(())
}

/// 1 in the place of each rank that does not see the token; `None` where one could not look.
fn blind_ranks(
    storage: &Storage,
    rank: &mut Rank<'_>,
    group: &Assignment,
    token: &str,
    left: Result<(), Failure>,
) -> Result<Option<Vec<f32>>, Failure> {
    let mut away = [f32::from(u8::from(is_away(&left)))];
    if away == [0.0] {
        left?;
    }
    rank.sum(&mut away)?;
    if away != [0.0] {
        return Ok(None);
    }
    let sees = storage.sees_token(token);
    let mut found = vec![0.0; group.world as usize + 1];
    if is_away(&sees) {
        found[group.world as usize] = 1.0;
    } else {
        found[group.rank as usize] = f32::from(u8::from(!sees?));
    }
    rank.sum(&mut found)?;
    Ok(found.pop_if(|away| *away == 0.0).map(|_| found))
}

/// Whether storage failed in a way that passes, which is logged.
fn is_away<T>(asked: &Result<T, Failure>) -> bool {
    let Err(Failure::Retry(error)) = asked else { return false };
    warn!(error, "the storage is away for a moment");
    true
}
