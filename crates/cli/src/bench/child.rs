//! Programs that a round starts: servers, generators, wires. They speak lines of JSON, each an event, and end with an object.

use super::cpu;
use crate::failure::{Failure, words};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long a child may take to end once it was asked to.
const END: Duration = Duration::from_secs(15);

/// A program that runs; it is killed, with all that it has started, if it still does when this value goes.
pub struct Child {
    what: &'static str,
    process: std::process::Child,
    lines: Receiver<String>,
    said: Receiver<String>,
}

impl Child {
    /// Starts one; `what` names it in errors.
    pub fn spawn(mut command: Command, what: &'static str) -> Result<Child, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        crate::sys::give_signals(&mut command);
        let failed = |error| Failure::told(format!("{what}: {}", words(&error)));
        let mut process = command.spawn().map_err(failed)?;
        let (tell, lines) = channel();
        let (complain, said) = channel();
        let (out, err) = (process.stdout.take(), process.stderr.take());
        // They end with the child's last word.
        thread::spawn(move || {
            for line in out.into_iter().flat_map(|out| BufReader::new(out).lines()).map_while(Result::ok) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        thread::spawn(move || {
            let mut text = String::new();
            if let Some(mut err) = err {
                // What could be read is told.
                let _ = err.read_to_string(&mut text);
            }
            let _ = complain.send(text);
        });
        Ok(Child { what, process, lines, said })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Why it ended, where it has.
    pub fn ended(&mut self) -> Option<Failure> {
        self.is_over().then(|| self.failure())
    }

    /// Whether it has ended.
    pub fn is_over(&mut self) -> bool {
        self.process.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits for an event.
    pub fn event(&mut self, name: &str, limit: Duration) -> Result<Value, Failure> {
        let end = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Ok(value) = serde_json::from_str::<Value>(&line)
                        && value["event"] == name
                    {
                        return Ok(value);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Failure::told(format!("{}: not {name} within {} s", self.what, limit.as_secs())));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.failure()),
            }
        }
    }

    /// Waits for its end; the object it ended with. An exit code of 1 with an object is one, too: some connections failed.
    pub fn finish(mut self, limit: Duration) -> Result<Value, Failure> {
        let text = self.rest(limit)?;
        // Lines of events may come first.
        let objects = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        match objects.map_while(Result::ok).last() {
            Some(value) => Ok(value),
            None => Err(self.failure()),
        }
    }

    /// Waits for the end of one that speaks no JSON; what it wrote.
    pub fn text(mut self, limit: Duration) -> Result<String, Failure> {
        let text = self.rest(limit)?;
        match self.process.wait() {
            Ok(status) if status.success() => Ok(text),
            _ => Err(self.failure()),
        }
    }

    /// What it writes until it ends.
    fn rest(&mut self, limit: Duration) -> Result<String, Failure> {
        let end = Instant::now() + limit;
        let mut text = String::new();
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    text.push_str(&line);
                    text.push('\n');
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(text),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Failure::told(format!("{}: did not end within {} s", self.what, limit.as_secs())));
                }
            }
        }
    }

    /// Waits for the end of one that speaks no JSON.
    pub fn end(&mut self, limit: Duration) -> Result<(), Failure> {
        let end = Instant::now() + limit;
        while self.lines.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok() {}
        match self.process.wait() {
            Ok(status) if status.success() => Ok(()),
            _ => Err(self.failure()),
        }
    }

    /// Asks it to end, as a terminal does; the object it ended with, if any.
    pub fn stop(self) -> Result<Value, Failure> {
        let pid = Pid::from_child(&self.process);
        // One that has ended already has left its output.
        let _ = kill_process(pid, Signal::INT);
        self.finish(END)
    }

    fn failure(&mut self) -> Failure {
        let code = self.process.wait().ok().and_then(|status| status.code());
        let said = self.said.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
        let said = said.lines().map(|line| line.trim_start_matches("corelane: ")).rfind(|line| !line.is_empty());
        match (said, code) {
            (Some(said), _) => Failure::told(format!("{}: {said}", self.what)),
            (None, Some(code)) => Failure::told(format!("{} ended with exit code {code}", self.what)),
            (None, None) => Failure::told(format!("{} was killed", self.what)),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            // Workers of a server that is killed would stay, and the namespace with them.
            let others = cpu::family(self.pid()).into_iter().skip(1);
            let others: Vec<Pid> = others.filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).collect();
            let _ = self.process.kill();
            for pid in others {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Child::spawn(command, "the script").expect("there is a shell")
    }

    #[test]
    fn events_and_the_last_object() {
        let mut child =
            shell("echo '{\"event\":\"ready\",\"port\":80}'; echo noise; printf '{\\n\"a\":1\\n}\\n'; exit 1");
        assert_eq!(child.event("ready", END).expect("it says so")["port"], 80);
        // What is no object ends the search for more.
        assert!(child.finish(END).is_err());
        let child = shell("printf '{\"event\":\"x\"}\\n{\\n\"a\":1\\n}\\n'; exit 1");
        assert_eq!(child.finish(END).expect("an object")["a"], 1);
    }

    #[test]
    fn who_is_not_ours_can_be_asked_to_end() {
        // As in a benchmark: the signals are blocked here.
        thread::spawn(|| {
            let _stop = crate::sys::Stop::on_signals(crate::sys::Hangup::Ends);
            let ends = "trap 'echo \"{}\"; exit 0' INT; echo '{\"event\":\"ready\"}'; while :; do sleep 0.05; done";
            let mut child = shell(ends);
            child.event("ready", END).expect("it says so");
            assert!(child.stop().expect("it ends with an object").is_object());
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn a_child_that_is_killed_takes_its_own_with_it() {
        let mut child = shell("sleep 600 & echo \"{\\\"event\\\":\\\"ready\\\",\\\"pid\\\":$!}\"; wait");
        let grandchild = child.event("ready", END).expect("it says so")["pid"].as_u64().expect("a number");
        drop(child);
        let alive = || {
            let stat = std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
            stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
        };
        let end = Instant::now() + END;
        while alive() {
            assert!(Instant::now() < end, "{grandchild} is still there");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn failures_say_what_the_child_said() {
        let mut child = shell("echo 'corelane: no such thing: make one' >&2; exit 1");
        let error = child.event("ready", END).expect_err("it fails").to_string();
        assert_eq!(error, "the script: no such thing: make one");
        let error = shell("exit 3").finish(END).expect_err("nothing").to_string();
        assert_eq!(error, "the script ended with exit code 3");
        let mut child = shell("sleep 20");
        assert!(child.event("ready", Duration::from_millis(20)).expect_err("late").to_string().contains("not ready"));
    }
}
