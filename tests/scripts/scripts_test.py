"""The scripts, in a copy of scripts/ with programs of our own in place of apt-get, curl, ctest and the build.

Run by ctest as scripts.<TestClass>; by hand: python3 tests/scripts/scripts_test.py
"""

import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BASH = ["#!/usr/bin/env bash"]


class ScriptCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="muster-scripts-")
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        self.fakes = self.root / "fakes"
        self.fakes.mkdir()

    def program(self, path, *lines):
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*BASH, *lines]) + "\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def call(self, script, *arguments, **environment):
        env = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_")}
        env |= {"PATH": f"{self.fakes}:{env['PATH']}", **environment}
        done = subprocess.run([self.root / "scripts" / script, *arguments], env=env, capture_output=True, text=True, timeout=60)
        done.output = done.stdout + done.stderr
        return done


class Setup(ScriptCase):
    """A LibTorch is given, so that nothing is fetched."""

    def setUp(self):
        super().setUp()
        (self.root / "torch/lib").mkdir(parents=True)
        (self.root / "torch/lib/libtorch_cpu.so").touch()
        self.torch = str(self.root / "torch")

    def test_silent_when_all_is_there(self):
        self.program(self.fakes / "dpkg-query", "echo installed")
        done = self.call("setup", MUSTER_TORCH=self.torch)
        self.assertEqual((done.returncode, done.output), (0, ""))

    def test_lacking_packages_are_installed_or_named(self):
        self.program(self.fakes / "dpkg-query", '[[ ${*: -1} == cppzmq-dev ]] || echo installed')
        self.program(self.fakes / "sudo", "exit 1" if os.geteuid() else 'exec "$@"')
        self.program(self.fakes / "apt-get", f'echo "$*" >> {self.root}/apt')
        done = self.call("setup", MUSTER_TORCH=self.torch)
        self.assertIn("cppzmq-dev", done.output)
        self.assertNotIn("g++", done.output)
        if os.geteuid() == 0:
            self.assertEqual(done.returncode, 0)
            self.assertRegex((self.root / "apt").read_text(), r"install .* cppzmq-dev\n$")
        else:
            self.assertEqual(done.returncode, 1)
            self.assertIn("may not install packages", done.output)

    def test_failed_installation_is_one_message(self):
        self.program(self.fakes / "dpkg-query", "exit 1")
        self.program(self.fakes / "sudo", "exit 1")
        self.program(self.fakes / "apt-get", "exit 100")
        done = self.call("setup", MUSTER_TORCH=self.torch)
        self.assertEqual(done.returncode, 1)
        self.assertIn("libzmq3-dev", done.output)

    def test_given_libtorch_must_be_one(self):
        self.program(self.fakes / "dpkg-query", "echo installed")
        done = self.call("setup", MUSTER_TORCH="/nowhere")
        self.assertEqual(done.returncode, 2)
        self.assertIn("MUSTER_TORCH: found no lib/libtorch_cpu.so under '/nowhere'", done.output)


    def python_with_torch(self):
        """A python3 that has torch 2.11; as it is where .venv is activated, or on a GPU machine."""
        package = self.root / "site/torch"
        (package / "lib").mkdir(parents=True)
        (package / "lib/libtorch_cpu.so").touch()
        (package / "__init__.py").touch()
        (package / "version.py").write_text("__version__ = '2.11.0'\n")
        self.program(self.fakes / "dpkg-query", "echo installed")
        return {"PYTHONPATH": str(self.root / "site")}

    def test_torch_of_python3_is_named_and_used(self):
        environment = self.python_with_torch()
        done = self.call("setup", **environment)
        self.assertEqual(done.returncode, 0, done.output)
        self.assertIn(f"-DMUSTER_TORCH={self.root}/site/torch", done.stdout)
        self.assertFalse((self.root / ".venv").exists())
        (self.root / "build").mkdir()
        (self.root / "build/build.ninja").touch()
        self.assertEqual(self.call("setup", **environment).output, "")

    def test_venv_counts_before_the_torch_of_python3(self):
        environment = self.python_with_torch()
        self.program(self.root / ".venv/bin/python", f'echo "$*" >> {self.root}/pip', "[[ $* == *pip* ]]")
        done = self.call("setup", "--full", **environment)
        self.assertEqual(done.returncode, 0, done.output)
        self.assertIn("requirements-full.txt", (self.root / "pip").read_text())
        self.assertRegex(done.stdout, r"setup: \[ *\d+ s\] installing torch 2.11.0 with all its packages")

    def test_no_package_index(self):
        self.program(self.fakes / "dpkg-query", "echo installed")
        self.program(self.root / ".venv/bin/python", "[[ $* == *--version* ]]")
        done = self.call("setup")
        self.assertEqual(done.returncode, 1)
        self.assertIn("could not install torch 2.11.0", done.stderr)
        self.assertIn("MUSTER_TORCH", done.stderr)


class Quickstart(ScriptCase):
    METRICS = '{"step": 1, "loss": 4.0}\n{"step": 250, "val_loss": 2.5}\n{"step": 500, "val_loss": 1.9}'

    def setUp(self):
        super().setUp()
        self.program(self.root / "scripts/setup", "true")
        self.program(self.root / "scripts/build", "true")
        self.program(self.root / "build/bin/muster", f'echo "$*" > {self.root}/arguments', 'while [[ $1 != --run-dir ]]; do shift; done',
                     'mkdir -p "$2"', f"cat > \"$2/metrics.jsonl\" <<'X'\n{self.METRICS}\nX")
        self.program(self.fakes / "curl", "exit 6")

    def arguments(self):
        return (self.root / "arguments").read_text()

    def test_shows_the_best_loss_and_passes_keys_on(self):
        text = self.root / "my.txt"
        text.write_text("some text")
        done = self.call("quickstart", "--text", str(text), "-n", "3", "--train-iters", "7")
        self.assertEqual(done.returncode, 0, done.output)
        self.assertIn("best validation loss 1.9000 at step 500", done.stdout)
        self.assertNotIn("1.88", done.stdout)
        self.assertRegex(self.arguments(), rf"^launch .*cpu.yaml -n 3 --data {text} --run-dir .* --train-iters 7\n$")

    def test_text_of_the_data_folder(self):
        (self.root / "tinyshakespeare.txt").write_text("some text")
        done = self.call("quickstart", MUSTER_DATA_DIR=str(self.root))
        self.assertEqual(done.returncode, 0, done.output)
        self.assertIn(f"--data {self.root}/tinyshakespeare.txt", self.arguments())

    def test_python_sources_without_a_network(self):
        done = self.call("quickstart")
        self.assertEqual(done.returncode, 0, done.output)
        self.assertIn("1.88 does not apply", done.stdout)
        text = (self.root / ".cache/python-sources.txt").read_text()
        self.assertLess(1_000_000, len(text))
        self.assertTrue(text.isascii())

    def test_a_download_that_is_another_text_is_not_used(self):
        self.program(self.fakes / "curl", 'while [[ $1 != -o ]]; do shift; done', 'echo "<html>" > "$2"')
        self.call("quickstart")
        self.assertIn("python-sources.txt", self.arguments())
        self.assertEqual([p.name for p in (self.root / ".cache").iterdir()], ["python-sources.txt"])

    def test_set_up_comes_first(self):
        """It brings curl and python3."""
        self.program(self.root / "scripts/setup", f"touch {self.root}/set-up")
        self.program(self.fakes / "curl", f"[[ -e {self.root}/set-up ]] && touch {self.root}/downloading; exit 6")
        self.call("quickstart")
        self.assertTrue((self.root / "downloading").exists())

    def test_no_validation_loss(self):
        self.program(self.root / "build/bin/muster", 'while [[ $1 != --run-dir ]]; do shift; done', 'mkdir -p "$2"',
                     """echo '{"step": 250, "val_loss": null}' > "$2/metrics.jsonl\"""")
        done = self.call("quickstart", "--text", __file__)
        self.assertEqual(done.returncode, 1)
        self.assertIn("metrics.jsonl: found no validation loss", done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def test_exit_code_of_a_failed_training(self):
        self.program(self.root / "build/bin/muster", "exit 139")
        done = self.call("quickstart", "--text", __file__)
        self.assertEqual(done.returncode, 139)
        self.assertIn("the training failed; its logs are in", done.output)

    def test_missing_text(self):
        done = self.call("quickstart", "--text", "/no/such.txt")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--text: found no file '/no/such.txt'", done.output)


class Test(ScriptCase):
    REPORT = """<testsuite><testcase name="a" status="run"/>{}</testsuite>"""
    SKIPPED = ('<testcase name="s" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>'
               "<system-out>x_test.cc:3: Skipped\nno text here\n</system-out></testcase>")

    def setUp(self):
        super().setUp()
        self.program(self.root / "scripts/setup", "true")
        self.program(self.root / "scripts/build", f'echo "$*" > {self.root}/build-arguments')

    def report(self, cases, exit_code=0):
        self.program(self.fakes / "ctest", f'echo "$*" > {self.root}/ctest-arguments',
                     'while [[ $1 != --output-junit ]]; do shift; done', f"cat > $2 <<'X'\n{self.REPORT.format(cases)}\nX", f"exit {exit_code}")

    def test_counts_and_lists_skipped_tests(self):
        self.report(self.SKIPPED)
        done = self.call("test")
        self.assertEqual(done.returncode, 0, done.output)
        self.assertIn("skipped: s (no text here)\n", done.stdout)
        self.assertTrue(done.stdout.endswith("\n1 passed, 0 failed, 1 skipped\n"), done.stdout)
        self.assertIn("-LE ^(slow|gpu)$ -j 2 ", (self.root / "ctest-arguments").read_text())

    def test_failure(self):
        self.report('<testcase name="f" status="fail"><failure message=""/></testcase>', 8)
        done = self.call("test")
        self.assertEqual(done.returncode, 8)
        self.assertIn("failed: f\n", done.stdout)
        self.assertTrue(done.stdout.endswith("\n1 passed, 1 failed, 0 skipped\n"), done.stdout)

    def test_what_was_not_built_has_failed(self):
        self.report('<testcase name="n_NOT_BUILT" status="notrun"><skipped message=""/></testcase>')
        done = self.call("test")
        self.assertEqual(done.returncode, 1)
        self.assertIn("1 passed, 1 failed, 0 skipped\n", done.stdout)

    def test_label_and_preset_and_options(self):
        self.report("")
        self.call("test", "--label", "config", "--preset", "tsan", "-DMUSTER_CUDA=OFF")
        self.assertIn(f"--test-dir {self.root}/build-tsan -L ^config$ ", (self.root / "ctest-arguments").read_text())
        self.assertEqual((self.root / "build-arguments").read_text(), "--preset tsan -DMUSTER_CUDA=OFF\n")

    def test_no_report(self):
        for ctest, wanted in (("exit 8", 8), ("true", 1)):
            self.program(self.fakes / "ctest", ctest)
            done = self.call("test")
            self.assertEqual(done.returncode, wanted)
            self.assertIn("test: ctest left no report", done.stderr)

    def test_tests_at_a_time(self):
        self.report("")
        self.call("test", MUSTER_TEST_JOBS="3")
        self.assertIn(" -j 3 ", (self.root / "ctest-arguments").read_text())
        done = self.call("test", MUSTER_TEST_JOBS="some")
        self.assertEqual(done.returncode, 2)
        self.assertIn("MUSTER_TEST_JOBS: found 'some', wanted a whole number from 1", done.stderr)


class Bench(unittest.TestCase):
    """Options of the training benchmarks are refused before anything runs; no torch is needed for that."""

    def refused(self, name, option, found, wanted):
        command = [sys.executable, ROOT / f"scripts/bench-{name}.py", "--muster", "/bin/true", option, found]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn(f"argument {option}: found '{found.split(',')[-1]}', wanted {wanted}", done.stderr)

    def test_bad_options(self):
        for name in ("zero-cpu", "ddp-cpu"):
            for option in ("--ranks", "--rounds", "--sequences"):
                self.refused(name, option, "0", "a whole number >= 1")
            self.refused(name, "--steps", "20", "a whole number >= 21")  # all would be warm-up
            self.refused(name, "--muster", "/nowhere/muster", "a program; build it: ./scripts/build")

    def test_stages(self):
        for stages in ("4", "0,x", "1,"):
            self.refused("zero-cpu", "--stages", stages, "stages of 0, 1, 2, 3 with commas between them")


class CheckIncludes(unittest.TestCase):
    def check(self, path, text):
        with tempfile.TemporaryDirectory(prefix="muster-includes-") as folder:
            root = pathlib.Path(folder)
            for name in ("comm/base/error.h", "comm/collective/x.h", "sharding/x.h", "worker/train/x.h", "worker/config/c.h",
                         "launcher/l.h", path):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).touch()
            (root / path).write_text(text)
            done = subprocess.run([ROOT / "scripts/check-includes", folder], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 1 if ":1: " in done.stdout else 0, done.stdout + done.stderr)
            return done.returncode == 0

    def test_this_repository(self):
        done = subprocess.run([ROOT / "scripts/check-includes"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_directions(self):
        for path, included, right in (
            ("comm/a.cc", "comm/base/error.h", True), ("comm/a.cc", "sharding/x.h", False), ("comm/a.cc", "launcher/l.h", False),
            ("comm/base/a.cc", "comm/collective/x.h", False), ("sharding/a.cc", "comm/collective/x.h", True),
            ("sharding/a.h", "worker/train/x.h", False), ("worker/a.cc", "sharding/x.h", True),
            ("worker/a.cc", "launcher/l.h", False),
            ("worker/config/a.cc", "comm/base/error.h", True), ("worker/config/a.cc", "worker/train/x.h", False),
            ("launcher/a.cc", "worker/config/c.h", True), ("launcher/a.cc", "worker/train/x.h", False),
            ("launcher/a.cc", "sharding/x.h", False), ("tests/a.cc", "launcher/l.h", True), ("comm/a.cc", "error.h", False),
        ):
            self.assertEqual(self.check(path, f'#include "{included}"\n'), right, f"{path} includes {included}")

    def test_libtorch(self):
        for path, included, right in (
            ("comm/a.h", "ATen/core/Tensor.h", False), ("comm/a.cc", "ATen/core/Tensor.h", True),
            ("comm/collective/a.h", "ATen/core/Tensor.h", True), ("launcher/a.h", "c10/core/Device.h", False),
            ("worker/config/a.h", "torch/types.h", False), ("worker/a.h", "ATen/core/Tensor.h", True),
            ("worker/a.cc", "torch/torch.h", False), ("tests/a.cc", "ATen/ATen.h", False),
        ):
            self.assertEqual(self.check(path, f"#include <{included}>\n"), right, f"{path} includes {included}")


class ShellCheck(unittest.TestCase):
    def test_scripts(self):
        if not shutil.which("shellcheck"):
            self.skipTest("no shellcheck here")
        heads = (b"#!/usr/bin/env bash", b"# shellcheck")
        scripts = [p for p in (ROOT / "scripts").iterdir() if p.is_file() and p.read_bytes().startswith(heads)] + [ROOT / ".ci/run"]
        self.assertLess(5, len(scripts))
        done = subprocess.run(["shellcheck", "-x", "-S", "warning", *scripts], cwd=ROOT, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
