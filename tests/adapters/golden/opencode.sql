CREATE TABLE `message` (
          `id` text PRIMARY KEY,
          `session_id` text NOT NULL,
          `time_created` integer NOT NULL,
          `time_updated` integer NOT NULL,
          `data` text NOT NULL,
          CONSTRAINT `fk_message_session_id_session_id_fk` FOREIGN KEY (`session_id`) REFERENCES `session`(`id`) ON DELETE CASCADE
        );
INSERT INTO message VALUES ('msg_22b882a0d0013wwXJMQ8tIyhI0','ses_dd477d827ffee77iLJRlHGA5TX',1796026673677,1796026682629,'{"role":"user","time":{"created":1796026673677},"agent":"build","model":{"providerID":"forge","modelID":"policy"},"summary":{"diffs":[]}}');
INSERT INTO message VALUES ('msg_22b8838ff001F7ECnv1MttIRE1','ses_dd477d827ffee77iLJRlHGA5TX',1796026677503,1796026682407,'{"parentID":"msg_22b882a0d0013wwXJMQ8tIyhI0","role":"assistant","mode":"build","agent":"build","path":{"cwd":"/workspace","root":"/"},"cost":0,"tokens":{"total":1020,"input":100,"output":15,"reasoning":5,"cache":{"write":0,"read":900}},"modelID":"policy","providerID":"forge","time":{"created":1796026677503,"completed":1796026682400},"finish":"tool-calls"}');
INSERT INTO message VALUES ('msg_22b884c43001WT6eL4W8P5eViG','ses_dd477d827ffee77iLJRlHGA5TX',1796026682435,1796026683071,'{"parentID":"msg_22b882a0d0013wwXJMQ8tIyhI0","role":"assistant","mode":"build","agent":"build","path":{"cwd":"/workspace","root":"/"},"cost":0,"tokens":{"total":1020,"input":1030,"output":7,"reasoning":0,"cache":{"write":0,"read":0}},"modelID":"policy","providerID":"forge","time":{"created":1796026682435,"completed":1796026683070},"finish":"stop"}');
