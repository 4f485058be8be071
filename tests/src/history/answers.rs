//! Every request and every release gets an answer, and in time.

use std::time::Duration;

use super::check::Limits;
use super::request::{History, Request};

pub(super) fn missing(history: &History, limits: &Limits) -> Vec<String> {
    let mut found = Vec::new();
    for request in &history.requests {
        let Some(life) = history.lives.get(&request.process) else { continue };
        let Request { id, key, want, wait, asked, answered, grant, .. } = request;
        let allowed = |wait: Duration| wait.saturating_add(limits.call_timeout).saturating_add(limits.slack);
        match answered {
            None if life.killed.is_none() => found.push(format!("{key}: {id} ({want:?}) got no answer")),
            Some(at) if life.running(*asked, *at) > allowed(*wait) => {
                let took = life.running(*asked, *at);
                found.push(format!("{key}: {id} ({want:?}, wait {wait:?}) was answered after {took:.1?}"));
            }
            _ => {}
        }
        let Some(grant) = grant else { continue };
        match (&grant.ended, &grant.out) {
            _ if life.killed.is_some() => {}
            (None, _) => found.push(format!("{key}: {id} never began to release its grant")),
            (Some(_), None) => found.push(format!("{key}: the release of {id} never ended")),
            (Some((from, _)), Some((to, _))) if life.running(*from, *to) > allowed(Duration::ZERO) => {
                found.push(format!("{key}: the release of {id} took {:.1?}", life.running(*from, *to)));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::Check::Answers;
    use super::super::check::tests::found;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_request_without_an_answer_is_found_unless_its_process_was_killed() {
        let with =
            |end: &str| found(Answers, &[("0.0", &format!("2 50 50 ask mutex patient 60000 - 2 b\n{end}"))]);
        assert_eq!((with(""), with("0 60 60 killed")), (1, 0));
        // 60 s of waiting, 2 s for the call and 5 s of slack.
        let late = 68 * S;
        assert_eq!(with(&format!("2 {late} {late} left")), 1);
        assert_eq!(with(&format!("0 60 60 paused\n0 {late} {late} continued\n2 {late} {late} left")), 0);
    }

    #[test]
    fn a_release_that_does_not_end_is_found() {
        let held = "1 10 10 ask mutex patient 60000 - 1 a\n1 20 900 granted 5\n";
        let with = |end: &str| found(Answers, &[("0.0", &format!("{held}{end}"))]);
        assert_eq!((with(""), with("1 30 900 end"), with("1 30 900 end\n0 40 40 killed")), (1, 1, 0));
        assert_eq!(with(&format!("1 30 900 end\n1 {} 0 out released", 20 * S)), 1);
        assert_eq!(with("1 30 900 end\n1 40 0 out released"), 0);
    }
}
