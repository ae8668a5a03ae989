import { expect, it } from "vitest";
import { againOf } from "./again";
import { argvOf, commandOf, EMPTY, formOf, problemsOf, specOf, yamlOf } from "./spec";

const form = {
  ...EMPTY, text: "Fix Ada's 'login'\n", harness: "claude", model: "sonnet", repository: "https://forge.example/a/b", base: "main",
  pullRequest: "draft", ask: "Bash, Write", deny: "*", cost: "2.5", attemptMinutes: "10", memory: "4096", dependsOn: "task-1 task-2",
  labels: "team=web q=a=b", priority: "high", attempts: "3", files: [{ name: "a.txt", content: "hi" }],
};

it("becomes a request without empty values", () => {
  expect(specOf(form)).toEqual({
    text: "Fix Ada's 'login'",
    harness: { kind: "claude", model: "sonnet", approvals: { tools: { Bash: "ask", Write: "ask" }, otherwise: "deny" } },
    repository: { url: "https://forge.example/a/b", base: "main", pull_request: { open: "draft" } },
    files: { "a.txt": "hi" }, depends_on: ["task-1", "task-2"], priority: "high", retry: { max_attempts: 3 },
    attempt_seconds: 600, limits: { memory_mb: 4096 }, budget: { cost_micro_usd: 2_500_000 }, labels: { team: "web", q: "a=b" },
  });
  expect(specOf({ ...EMPTY, text: "x", harness: "command", program: "make test" })).toEqual({
    text: "x", harness: { kind: "command", argv: ["make", "test"] },
  });
  for (const text of ["echo $HOME && ls", "CI=1 make test", "cd src"]) expect(argvOf(text)).toEqual(["sh", "-c", text]);
});

it("becomes a file and a command line that quote every text", () => {
  expect(yamlOf(specOf(form))).toContain('tasks:\n  - text: "Fix Ada\'s \'login\'"\n    harness:\n      kind: "claude"');
  expect(yamlOf(specOf(form))).toContain('after: ["task-1", "task-2"]');
  expect(commandOf(form)).toBe(
    "sandherd run 'Fix Ada'\\''s '\\''login'\\''' --harness claude --model sonnet --repo https://forge.example/a/b --base main" +
      " --pr draft --file a.txt --depends-on task-1 --depends-on task-2 --priority high --attempts 3 --attempt-timeout 10m" +
      " --memory 4096m --ask Bash --ask Write --deny '*' --budget cost=2.5usd --label team=web --label q=a=b",
  );
  expect(commandOf({ ...EMPTY, text: "t", harness: "command", program: "a; b" })).toBe("sandherd run t -- sh -c 'a; b'");
});

it("says what is wrong, and begins with an earlier task", () => {
  expect(Object.keys(problemsOf(EMPTY))).toEqual(["text", "harness"]);
  const wrong = { ...form, repository: "git@forge", cost: "-1", labels: "team", harness: "command" };
  expect(Object.keys(problemsOf(wrong)).sort()).toEqual(["cost", "labels", "program", "repository"]);
  const earlier = formOf(
    { text: "cut", harness: "claude", repository: "local", max_attempts: 1, priority: "low", profile: "py" },
    { task: "cut off no more", labels: { team: "web", "sandherd/batch": "b" } },
  );
  expect([earlier.text, earlier.repository, earlier.labels, earlier.priority, earlier.attempts]).toEqual(["cut off no more", "", "team=web", "low", ""]);
});

it("begins with all that was submitted as an earlier task, and submits the same", () => {
  const spec = {
    text: "cut", harness: { kind: "claude", model: "sonnet", max_turns: 9, approvals: { tools: { Bash: "ask", Read: "allow" }, otherwise: "deny" } },
    runtime: "docker", image: "agents:1", env: { LANG: "C" }, secrets: { TOKEN: "forge-token" }, files: { "a.txt": "hi" },
    repository: { url: "https://forge.example/a/b", base: "main", pull_request: { open: "draft", reviewers: ["ada"] } },
    depends_on: ["task-1"], retry: { max_attempts: 3, first_delay_seconds: 2 }, attempt_seconds: 90, labels: { team: "web" },
    limits: { memory_mb: 512, processes: 64 }, budget: { cost_micro_usd: 500_000, tokens: 9 }, priority: "high",
  };
  const { form: earlier, missing } = againOf(spec);
  expect([missing, specOf(earlier)]).toEqual([[], spec]);
  expect(specOf({ ...earlier, tokens: "", harness: "acp", program: "run it", repository: "", further: { ...earlier.further, image: "b" } })).toMatchObject({
    budget: { cost_micro_usd: 500_000 }, harness: { kind: "acp", argv: ["run", "it"] }, image: "b",
  });
  for (const argv of [["make", "test"], ["sh", "-c", "a && b"], ["python3", "-c", "print('x y')"]]) {
    const harness = specOf(againOf({ text: "t", harness: { kind: "command", argv } }).form).harness as { argv: string[] };
    expect([argv, ["sh", "-c", "python3 -c 'print('\\''x y'\\'')'"]]).toContainEqual(harness.argv);
  }
});

it("names what is not stored of an earlier task, and leaves it out", () => {
  const { form: earlier, missing } = againOf({
    text: "t", harness: { argv: ["true"] }, env: { KEY: "", A: "1" }, secret_env: ["KEY"], files: { "b.py": "" },
    repository: { url: "local:shop", base: "main" }, work: { artifact: "upl-1" }, deadline: "2026-01-01T00:00:00Z", labels: { "sandherd/batch": "b" },
  });
  expect(missing).toEqual(["the value of KEY", "the file b.py", "its local repository", "its work", "its deadline"]);
  expect(specOf(earlier)).toEqual({ text: "t", harness: { kind: "command", argv: ["true"] }, env: { A: "1" } });
});
