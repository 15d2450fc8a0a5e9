// What a team's program does with the generated types: node cycle.js URL KEY RUN PRINTED.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Schemas = components["schemas"];
const { argv } = (globalThis as unknown as { process: { argv: string[] } }).process;

function check(holds: unknown, what: string): asserts holds {
  if (!holds) throw new Error(what);
}

const [url, key, running, printed] = argv.slice(2) as [string, string, string, string];
const client = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${key}` } });

function expect<T>({ data, error }: { data?: T; error?: Schemas["Problem"] }): T {
  check(data !== undefined, error?.detail ?? "no answer");
  return data;
}

const spec: Schemas["JobSpec"] = {
  name: "report",
  target: { kind: "http", url: "https://example.com/report" },
  schedule: { cron: "0 3 * * *" },
  priority: 700,
};
const job = expect(await client.POST("/api/v1/jobs", { body: spec }));
check(job.schedule && "cron" in job.schedule && job.schedule.timezone === "UTC", "its zone");
const page = expect(await client.GET("/api/v1/jobs", { params: { query: { q: "report" } } }));
const found: string[] = page.results.map((one) => one.id);
check(found.includes(job.id), "it is listed");

const refused = await client.POST("/api/v1/jobs", { body: spec });
check(refused.error?.code === "duplicate_name", "the second is refused");

const ofJob = { params: { path: { job_id: job.id } } };
const run = expect(await client.POST("/api/v1/jobs/{job_id}/run", { ...ofJob, body: { reason: "by hand" } }));
const ofRun = { params: { path: { run_id: run.id } } };
const state: string = expect(await client.GET("/api/v1/runs/{run_id}", ofRun)).state;
check(state === "ready", state);
const log = await client.GET("/api/v1/runs/{run_id}/log", {
  params: { path: { run_id: running } },
  parseAs: "text",
});
check(log.data === `${printed}\n`, "its log");
const cancelled = expect(await client.POST("/api/v1/runs/{run_id}/cancel", { ...ofRun, body: {} }));
check(cancelled.state === "cancelled", cancelled.state);

const changed = expect(
  await client.PATCH("/api/v1/jobs/{job_id}", { ...ofJob, body: { schedule: { cron: "0 4 * * *" } } }),
);
check(changed.schedule && "cron" in changed.schedule, "its kind");
check(changed.schedule.cron === "0 4 * * *" && changed.priority === 700, "the rest stays");

const deleted = await client.DELETE("/api/v1/jobs/{job_id}", ofJob);
check(deleted.response.status === 204, "it is deleted");
const gone = await client.GET("/api/v1/jobs/{job_id}", ofJob);
check(gone.error?.code === "not_found", "it is gone");
