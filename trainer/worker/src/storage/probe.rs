//! A check that all members see the same storage: one of them leaves a token, and each looks for
//! it.

use lockstep_elastic::Assignment;
use tracing::{info, warn};

use super::Storage;
use crate::failure::Failure;

/// Sums values over all ranks.
pub(crate) type Sum<'a> = dyn FnMut(&mut [f32]) -> Result<(), Failure> + 'a;

/// One member's part in the check.
pub(crate) struct Probe<'a> {
    pub storage: &'a Storage,
    pub group: &'a Assignment,
    /// The name of the token, which no other group of the folder uses.
    pub token: String,
    /// True if this member has passed the check in an earlier group.
    pub has_passed: bool,
}

impl Probe<'_> {
    /// Refuses storage that some members do not see: a restart on other nodes could not use a
    /// checkpoint there. If some members have trained with the storage before, later ones leave and
    /// the others go on. Returns true if this member has passed the check.
    pub(crate) fn check(self, sum: &mut Sum<'_>) -> Result<bool, Failure> {
        let Self { storage, group, ref token, has_passed } = self;
        let own = group.rank as usize;
        let mut unchecked = vec![0.0; group.world as usize];
        unchecked[own] = f32::from(u8::from(!has_passed));
        sum(&mut unchecked)?;
        if unchecked.iter().all(|unchecked| *unchecked == 0.0) {
            return Ok(has_passed);
        }
        let earlier = unchecked.iter().position(|unchecked| *unchecked == 0.0);
        let writes = own == earlier.unwrap_or_default();
        let left = if writes { storage.leave_token(token) } else { Ok(()) };
        let blind = self.blind_ranks(left, sum);
        if writes {
            storage.clear_token(token);
        }
        let Some(blind) = blind? else {
            info!("the storage did not answer; the next group checks if all workers see the same");
            return Ok(has_passed);
        };
        let blind: Vec<usize> = (0..blind.len()).filter(|rank| blind[*rank] > 0.0).collect();
        if blind.is_empty() {
            return Ok(true);
        }
        let pods: Vec<String> = blind.iter().map(|rank| group.pods[*rank].clone()).collect();
        let problem = storage.not_shared(&pods);
        let are_new = earlier.is_some() && blind.iter().all(|rank| unchecked[*rank] > 0.0);
        Err(match are_new {
            false => Failure::fatal(problem),
            true if blind.contains(&own) => Failure::Unfit(problem),
            true => Failure::broken(problem),
        })
    }

    /// Returns 1 in the place of each rank that does not see the token. `None` if a rank could not
    /// look.
    fn blind_ranks(&self, left: Result<(), Failure>, sum: &mut Sum<'_>) -> Result<Option<Vec<f32>>, Failure> {
        let (own, world) = (self.group.rank as usize, self.group.world as usize);
        let mut away = [f32::from(u8::from(is_away(&left)))];
        if away == [0.0] {
            left?;
        }
        sum(&mut away)?;
        if away != [0.0] {
            return Ok(None);
        }
        let sees = self.storage.sees_token(&self.token);
        let mut found = vec![0.0; world + 1];
        if is_away(&sees) {
            found[world] = 1.0;
        } else {
            found[own] = f32::from(u8::from(!sees?));
        }
        sum(&mut found)?;
        Ok(found.pop_if(|away| *away == 0.0).map(|_| found))
    }
}

/// Returns true if the storage failed in a way that passes, and logs it.
fn is_away<T>(asked: &Result<T, Failure>) -> bool {
    let Err(Failure::Retry(error)) = asked else { return false };
    warn!(error, "the storage is away for a moment");
    true
}
