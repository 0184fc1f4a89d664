//! Phrases that several findings share.

use jiff::Timestamp;

/// A share as a percentage.
pub(super) use crate::display::whole_percent as percent;

/// Names that are listed before the rest is only counted.
const LISTED: usize = 3;

/// Lists names: the first ones, and the number of the others.
pub(super) fn listed(names: &[&str]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [one] => (*one).to_owned(),
        _ if names.len() <= LISTED => {
            let (last, first) = names.split_last().unwrap_or((&"", &[]));
            format!("{} and {last}", first.join(", "))
        }
        _ => format!("{} and {} more", names[..LISTED].join(", "), names.len() - LISTED),
    }
}

/// The time from `since` to `now` as people say it.
pub(super) fn ago(since: Timestamp, now: Timestamp) -> String {
    spell(now.duration_since(since).as_secs().max(0).unsigned_abs())
}

/// Seconds as people say them.
pub(super) fn spell(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..600 if !seconds.is_multiple_of(60) => format!("{} min {} s", seconds / 60, seconds % 60),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// A number of things.
pub(super) fn count(number: u32, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// Ends a text with exactly one full stop.
pub(super) fn sentence(text: &str) -> String {
    format!("{}.", text.trim().trim_end_matches('.'))
}

/// Returns a message of a condition as a sentence, if there is one. The name of a field or of a pod
/// at its beginning stays as it is.
pub(super) fn said(message: &str) -> Option<String> {
    let message = message.trim();
    let first = message.split(' ').next().filter(|word| !word.is_empty())?;
    let is_word = first.chars().all(char::is_alphabetic);
    let (head, rest) = message.split_at(message.chars().next().map_or(0, char::len_utf8));
    Some(sentence(&if is_word { head.to_uppercase() + rest } else { message.to_owned() }))
}
