#!/usr/bin/env python3
"""Tests of tools/test.py and tools/fence.py, with a small test program that rustc builds, and of tools/machine.py: tools/selftest.py"""
import concurrent.futures
import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

import fence
import machine
import test

# Each module is what one test program holds; `first` is true once for each name.
SOURCE = r'''
use std::process::Command;

fn first(name: &str) -> bool {
    std::fs::OpenOptions::new().write(true).create_new(true).open(format!("{}/{name}", std::env::var("SCRATCH").unwrap())).is_ok()
}

fn sh(command: &str) {
    assert!(Command::new("sh").args(["-c", command]).status().unwrap().success());
}

mod green { #[test] fn passes() {} #[test] #[ignore] fn ignored() {} }
mod unsteady {
    #[test] fn passes() {}
    #[test] fn once() {
        if super::first("once") { eprintln!("replay with: CORELANE_SEED=7"); panic!("a wind blew"); }
    }
}
mod silent { #[test] fn once() -> std::process::ExitCode { (super::first("silent") as u8).into() } }
mod twice {
    #[test] fn always() { panic!("it is broken"); }
    #[test] fn once() { assert!(!super::first("twice")); }
}
mod four {
    #[test] fn a() { assert!(!super::first("a")); }
    #[test] fn b() { assert!(!super::first("b")); }
    #[test] fn c() { assert!(!super::first("c")); }
    #[test] fn d() { assert!(!super::first("d")); }
}
mod dies { #[test] fn once() { if super::first("dies") { std::process::abort(); } } }
mod contradicts {
    #[test] fn once() {
        if super::first("contradicts") { panic!("thread 'lane-0' panicked at crates/stack/src/engine/check.rs:109:21:\nno connection"); }
    }
}
mod hangs { #[test] fn once() { if super::first("hangs") { super::sh("sleep 1000"); } } }
mod leaves {
    #[test] fn a_process() {
        let mut child = super::Command::new("sh").args(["-c", "echo; sleep 1000"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    }
}
mod network {
    #[test] fn is_its_own() {
        super::sh("ip link add clr-self type veth peer name clr-peer && ip netns add clr-self && [ -e /sys/class/net/clr-self ]");
    }
}
mod killed {
    #[test] fn in_the_middle() { super::sh("ip link add clr-self type veth peer name clr-peer && ip netns add clr-self && kill -9 $PPID"); }
}
'''


def processes(directory):
    """Command lines of the running processes that have a directory in their environment."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if directory in fence.read(f"/proc/{pid}/environ"):
            yield fence.command_of(pid)


class Runs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temp = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temp.cleanup)
        source, cls.program = os.path.join(cls.temp.name, "made_up.rs"), os.path.join(cls.temp.name, "made_up")
        with open(source, "w") as file:
            file.write(SOURCE)
        subprocess.run(["rustc", "--test", "--edition=2024", "-o", cls.program, source], check=True, stdin=subprocess.DEVNULL)
        cls.why = fence.unavailable()

    def setUp(self):
        scratch = tempfile.TemporaryDirectory(dir=self.temp.name)
        self.addCleanup(scratch.cleanup)
        self.scratch = scratch.name

    def begin(self, *modules, limit=60, jobs=1):
        env = dict(os.environ) | {"SCRATCH": self.scratch}
        self.tasks = []
        for number, module in enumerate(modules):
            # A program's log lies beside it.
            program = os.path.join(self.scratch, f"{module}-{number}")
            if os.path.exists(self.program):
                os.link(self.program, program)
            self.tasks.append({"name": f"made_up/{module}", "cwd": self.scratch, "command": [program, f"{module}::"], "env": env})
        return test.Run(self.tasks, jobs, {}, limit, not self.why)

    def run_of(self, *modules, **options):
        """The names of programs that failed, unsteady tests with the totals, and all that was printed."""
        run, said = self.begin(*modules, **options), io.StringIO()
        with contextlib.redirect_stdout(said):
            run.all()
            run.again()
        bad, lines = test.verdict(self.tasks, run.results, 1)
        return [name.removeprefix("made_up/") for name in bad], lines, said.getvalue()

    def needs_a_fence(self):
        if self.why:
            self.skipTest(self.why)

    def test_all_pass(self):
        bad, lines, said = self.run_of("green")
        self.assertEqual(bad, [])
        self.assertTrue(lines[0].startswith("test result: ok. 1 passed; 0 failed; 1 ignored;"), lines)
        self.assertNotIn("again", said)

    def test_many_at_once(self):
        bad, lines, said = self.run_of(*["green"] * 40, jobs=8)
        self.assertEqual((bad, said.count("Running")), ([], 40))
        self.assertTrue(lines[0].startswith("test result: ok. 40 passed; 0 failed; 40 ignored;"), lines)

    def test_fences_that_threads_make_at_once_are_different(self):
        self.needs_a_fence()
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        self.addCleanup(sys.setswitchinterval, before)
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            fences = [each.result() for each in [threads.submit(fence.Fence) for _ in range(400)]]
        self.assertEqual(len({each.group for each in fences}), 400)
        self.assertEqual([line for each in fences for line in each.end()], [])

    def test_what_passes_when_it_is_run_again_is_unsteady(self):
        bad, lines, said = self.run_of("unsteady", "green")
        self.assertEqual(bad, [])
        self.assertEqual(lines[0], "unsteady: made_up/unsteady unsteady::once failed, and passed when it was run again:")
        self.assertTrue(lines[1].startswith("  thread 'unsteady::once'") and lines[2] == "  a wind blew", lines)
        self.assertIn("  replay with: CORELANE_SEED=7", lines)
        self.assertTrue(lines[-1].startswith("test result: ok. 3 passed; 0 failed; 1 ignored;"), lines)
        self.assertIn("Running unsteady::once of made_up/unsteady again, alone", said)

    def test_a_failure_that_says_nothing_is_run_again(self):
        bad, lines, _ = self.run_of("silent")
        self.assertEqual((bad, len([l for l in lines if l.startswith("unsteady:")])), ([], 1))

    def test_what_fails_twice_fails(self):
        bad, lines, _ = self.run_of("twice", "green")
        self.assertEqual(bad, ["twice"])
        self.assertTrue(lines[-1].startswith("test result: FAILED. 2 passed; 1 failed;"), lines)

    def test_more_than_three_are_not_run_again(self):
        bad, lines, said = self.run_of("four")
        self.assertEqual((bad, len(lines)), (["four"], 1))
        self.assertIn("4 tests failed, more than 3: none is run again", said)

    def test_a_signal_or_a_contradiction_is_not_run_again(self):
        for module in ("dies", "contradicts"):
            bad, lines, said = self.run_of(module)
            self.assertEqual((bad, len(lines)), ([module], 1))
            self.assertNotIn("again", said)

    def test_a_program_that_cannot_be_started_fails(self):
        self.program += "-gone"
        bad, lines, _ = self.run_of("green")
        self.assertEqual((bad, len(lines)), (["green"], 1))

    def test_a_program_that_hangs_is_ended_with_all_that_it_started(self):
        bad, lines, said = self.run_of("hangs", limit=1)
        self.assertEqual((bad, len(lines)), (["hangs"], 1))
        self.assertIn("was ended after 1 s", said)
        self.assertRegex(said, r"sleep 1000\n")
        self.assertIn("The kernel's log of that time:", said)
        self.assertEqual(list(processes(self.scratch)), [])

    def test_a_process_that_is_left_running_is_ended(self):
        self.needs_a_fence()
        bad, _, said = self.run_of("leaves")
        self.assertEqual(bad, [])
        self.assertRegex(said, r"left this running, and it was ended: \d+ sh -c echo; sleep 1000")
        self.assertEqual(list(processes(self.scratch)), [])

    def test_a_network_is_gone_with_its_program(self):
        self.needs_a_fence()
        bad, _, said = self.run_of("network", "killed", "network")
        # A program that is killed leaves nothing to the next.
        self.assertEqual(bad, ["killed"], said)
        self.assertFalse(os.path.exists("/sys/class/net/clr-self") or os.path.exists("/run/netns/clr-self"))
        self.assertEqual([name for name in os.listdir(fence.root()) if name.startswith(f"{fence.NAME}{os.getpid()}-")], [])

    def test_a_run_that_was_killed_is_swept_up(self):
        self.needs_a_fence()
        pid = os.fork()
        if pid == 0:
            # The child is a run that is killed while its program runs.
            sys.stdout = io.StringIO()
            self.begin("hangs").all()
            os._exit(1)
        left = []
        while "sleep 1000" not in " ".join(left):
            left = list(processes(self.scratch))
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.assertRegex("\n".join(fence.sweep()), r"(?m)^\d+ sleep 1000")
        self.assertEqual((list(processes(self.scratch)), fence.sweep()), ([], []))

    def test_a_run_that_is_interrupted_leaves_nothing(self):
        for exclusive in (False, True):
            pid = os.fork()
            if pid == 0:
                sys.stdout = io.StringIO()
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
                run = self.begin("hangs")
                if exclusive:
                    run.exclusive, run.computing = run.computing, []
                try:
                    run.all()
                except SystemExit:
                    run.stop()
                os._exit(7)
            while "sleep 1000" not in " ".join(processes(self.scratch)):
                time.sleep(0.01)
            os.kill(pid, signal.SIGTERM)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 7)
            left = [] if self.why else [name for name in os.listdir(fence.root()) if name.startswith(f"{fence.NAME}{pid}-")]
            self.assertEqual((list(processes(self.scratch)), left), ([], []))
            os.remove(os.path.join(self.scratch, "hangs"))
            os.remove(os.path.join(self.scratch, "hangs-0"))

    def test_a_run_that_is_stopped_ends_its_program_and_begins_no_other(self):
        run = self.begin("green", "hangs")
        run.computing.sort(key=lambda t: t["name"], reverse=True)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            thread = test.threading.Thread(target=run.all)
            thread.start()
            while not any("sleep 1000" in each for each in processes(self.scratch)):
                time.sleep(0.01)
            run.stop()
            thread.join()
        self.assertEqual((run.results, list(processes(self.scratch)), said.getvalue()), ([], [], ""))


class Machine(unittest.TestCase):
    def says(self, *arguments):
        out, wrong = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(wrong), unittest.mock.patch("sys.argv", ["machine.py", *arguments]):
            code = machine.main()
        return code, out.getvalue(), wrong.getvalue()

    def test_a_machine_with_room_is_described(self):
        code, out, wrong = self.says("--disk", "0.001", "--memory", "0.001", "/nowhere/at/all")
        self.assertEqual((code, wrong), (0, ""))
        self.assertRegex(out, r"^.+, [0-9]+ CPUs, Linux .+; free: [0-9]+ GiB of disk, [0-9]+ GiB of memory; "
                              r"a fixed computation took [0-9.]+ s\n$")

    def test_too_little_room_is_refused_in_one_line(self):
        for option, name in ("--disk", r"disk \(for /tmp\)"), ("--memory", "memory"):
            code, out, wrong = self.says(option, "1e9", "/tmp")
            self.assertEqual((code, out), (1, ""))
            self.assertRegex(wrong, rf"^machine.py: [0-9.]+ GiB of {name} are free, and 1e\+09 are needed\n$")

    def test_memory_is_no_more_than_a_control_group_allows(self):
        files = {
            "/proc/meminfo": "MemAvailable:   8388608 kB\n",
            "/proc/self/cgroup": "4:memory:/a/b\n0::/c\n",
            "/proc/self/mountinfo": "30 1 0:1 / /g rw - cgroup none rw,memory\n31 1 0:2 / /g/unified rw - cgroup2 none rw\n",
            "/g/memory.limit_in_bytes": "9223372036854771712\n",
        }
        for path, limit, least in (None, None, 8 << 30), ("/g/a/memory.limit_in_bytes", 5, 5), ("/g/unified/c/memory.max", 6, 6):
            more = {path: f"{limit}\n", "/g/unified/memory.max": "max\n"}
            with unittest.mock.patch("machine.text", lambda path: (files | more).get(path, "")):
                self.assertEqual(machine.free_memory(), least)


if __name__ == "__main__":
    unittest.main()
